"""Dims: one canonical form, the same numbers as Python's integers, text that reads back."""

import operator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright.ir import dim as dims
from tilewright.ir.dim import Symbol, compile_dims, evaluate, substitute, symbol, symbols_of
from tilewright.ir.dim_text import parse_dim
from tilewright.ir.errors import ParseError

from .strategies import CALLS, NAMES, dim_expressions

a, b, s = map(symbol, NAMES)
numbers = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})
PYTHON = {
    dims.floordiv: operator.floordiv,
    dims.mod: operator.mod,
    dims.minimum: min,
    dims.maximum: max,
    dims.ceildiv: lambda x, y: -(-x // y),
}


def test_equal_polynomials_are_equal_objects():
    assert (a + b) * (a - b) == a * a - b * b
    assert hash((a + b) * (a - b)) == hash(a * a - b * b)
    assert a - a == 0
    assert isinstance(a - a, int)
    assert 2 * a - a == a
    assert (a + 1) * 0 == 0
    assert a != b
    assert a != 3


@pytest.mark.parametrize(("hi", "text"), [(8, "[0, 8]"), (0, "[0, 0]"), (None, "[0, ]")])
def test_a_range_has_no_end_only_where_it_has_no_bound(hi, text):
    assert Symbol("n", 0, hi).span == text


def test_what_is_printed():
    assert str(3 * a * b - 2 * a + 7) == "3*a*b - 2*a + 7"
    assert str(-a) == "-a"
    assert str((a + 1) // 4) == "((a + 1)//4)"
    assert str(a * ((b + 1) // 4)) == "((b + 1)//4)*a"
    assert str((a - 3) // 4) == "((a + 1)//4) - 1"  # one form, whichever number was added
    assert str(((a + 1) // 2 + 1) // 2) == "((a + 3)//4)"  # halved and rounded up, twice
    assert str(dims.minimum(b, a)) == "min(a, b)"
    assert repr(a + 1) == "Dim(a + 1)"


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (lambda: (4 * a + 8) // 4, a + 2),
        (lambda: (4 * a + 9) // 4, a + 2),
        (lambda: (4 * a + 2) // 8, (2 * a + 1) // 4),
        (lambda: (a // 2) // 3, a // 6),
        (lambda: (a * b) // b, a),
        (lambda: (a * b + 3 * b) // b, a + 3),
        (lambda: (4 * a + 6) % 4, 2),
        (lambda: (5 * a) % 4, a % 4),
        (lambda: (a * b) % b, 0),
        (lambda: a // 1, a),
        (lambda: a % 1, 0),
        (lambda: dims.ceildiv(8 * a, 8), a),
        (lambda: dims.minimum(a, a + 1), a),
        (lambda: dims.maximum(a, a + 1), a + 1),
        (lambda: dims.maximum(dims.maximum(a, b), a), dims.maximum(b, a)),
        (lambda: dims.minimum(s, dims.minimum(b, a)), dims.minimum(dims.minimum(s, a), b)),
        (lambda: -7 // 2 + 0 * a, -4),
        (lambda: dims.floordiv(-7, 2), -4),
        (lambda: dims.mod(-7, 2), 1),
        (lambda: dims.product([a, 2, b]), 2 * a * b),
        (lambda: dims.product([]), 1),
    ],
)
def test_simplifications(dim, expected):
    assert dim() == expected


@given(dim_expressions(), st.integers(1, 9))
def test_a_dim_divides_term_by_term(dim, by):
    quotient, rest = dims.divided(dim, by)
    assert quotient * by + rest == dim
    factors = [rest] if isinstance(rest, int) else [c for _, c in rest.terms]
    assert all(0 <= c < by for c in factors)


@given(dim_expressions(), dim_expressions(), numbers)
def test_arithmetic_is_that_of_integers(x, y, values):
    at_x, at_y = evaluate(x, values), evaluate(y, values)
    assert evaluate(x + y, values) == at_x + at_y
    assert evaluate(x - y, values) == at_x - at_y
    assert evaluate(x * y, values) == at_x * at_y
    for function in CALLS:
        if function in (dims.minimum, dims.maximum) or at_y > 0:
            assert evaluate(function(x, y), values) == PYTHON[function](at_x, at_y)


@given(dim_expressions())
def test_text_reads_back(dim):
    assert parse_dim(str(dim)) == dim


@given(dim_expressions(), dim_expressions(), dim_expressions())
def test_order_and_grouping_do_not_matter(x, y, z):
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert dims.minimum(x, y) == dims.minimum(y, x)
    assert dims.maximum(dims.maximum(x, y), z) == dims.maximum(x, dims.maximum(y, z))


@given(dim_expressions(), st.sampled_from((3, 2 * s, a + b, b * s + 1)), numbers)
def test_substitution_then_evaluation(x, y, values):
    shifted = substitute(x, {"a": y})
    assert evaluate(shifted, values) == evaluate(x, {**values, "a": evaluate(y, values)})
    assert substitute(x, {}) is x


@given(st.lists(dim_expressions(), max_size=4), numbers)
def test_compiled_functions_agree_with_evaluation(many, values):
    bind = compile_dims(many, NAMES)
    expected = tuple(evaluate(d, values) for d in many)
    assert bind(*(values[n] for n in NAMES)) == expected


@settings(max_examples=50)
@given(dim_expressions())
def test_symbols_are_those_that_matter(dim):
    base = {"a": 5, "b": 7, "s": 11}
    for name in set(NAMES) - symbols_of(dim):
        assert substitute(dim, {name: 99}) == dim
    assume(not isinstance(dim, int))
    if not symbols_of(dim):
        evaluate(dim, base)


def test_a_missing_symbol_is_named():
    with pytest.raises(KeyError, match="b, s"):
        evaluate(a + b * s, {"a": 1})


def test_a_dim_has_no_truth_value():
    with pytest.raises(TypeError, match="dim a has no truth value"):
        bool(a)


@pytest.mark.parametrize("name", ["1a", "a b", "", "min", "max", "a-b"])
def test_names_that_no_symbol_has(name):
    with pytest.raises(ValueError, match="is not a name for a symbol"):
        symbol(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a dim, found the end"),
        ("a +", "found the end at column 4"),
        ("a $ b", r"unexpected character at column 2"),
        ("(a", r"expected \), found the end"),
        ("a b", r"unexpected 'b'"),
        ("min(a)", "expected ,"),
        ("a // 0", "division by zero"),
        ("a % 0", "division by zero"),
        ("9" * 19, "over 18 digits"),
        ("(" * 70 + "a" + ")" * 70, "nested deeper than 64"),
        ("a" + "%b" * 3000, "nested deeper than 64"),
        ("*".join(["(a+b+c+d+e)"] * 60), "a product of more than 1000 terms"),
        ("+".join(f"s{i}" for i in range(1001)), "a sum of more than 1000 terms"),
        ("a" + "+b" * 10_000, "text of more than 20000 characters"),
        ("__import__('os').getpid()", "unexpected"),
        ("a.b", "unexpected character"),
    ],
)
def test_text_that_is_no_dim(text, message):
    with pytest.raises(ParseError, match=message):
        parse_dim(text)


def test_names_in_text_are_never_evaluated():
    assert parse_dim("exit + print") == symbol("exit") + symbol("print")
