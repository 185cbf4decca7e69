"""Facts: what is proved holds for every value in range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.dim import Symbol, ceildiv, evaluate, floordiv, maximum, minimum, symbol
from tilewright.ir.errors import DimError
from tilewright.ir.facts import DEFAULT_HINT, Facts

from .strategies import dim_expressions, symbols, values_of

t, n = symbol("t"), symbol("n")


def facts(**ranges):
    return Facts({name: Symbol(name, *r) for name, r in ranges.items()})


@given(st.data())
def test_bounds_hold(data):
    declared = data.draw(symbols())
    dim = data.draw(dim_expressions())
    low, high = Facts(declared).bounds(dim)
    for _ in range(4):
        value = evaluate(dim, data.draw(values_of(declared)))
        assert low is None or low <= value
        assert high is None or value <= high


@given(st.data())
def test_proofs_hold(data):
    declared = data.draw(symbols())
    x, y = data.draw(dim_expressions()), data.draw(dim_expressions())
    known = Facts(declared)
    for _ in range(3):
        values = data.draw(values_of(declared))
        at_x, at_y = evaluate(x, values), evaluate(y, values)
        assert not known.proved_le(x, y) or at_x <= at_y
        assert not known.proved_lt(x, y) or at_x < at_y
        assert not known.proved_eq(x, y) or at_x == at_y
        assert not known.proved_ne(x, y) or at_x != at_y
        divisor = known.multiple(x)
        assert at_x == 0 if divisor == 0 else at_x % divisor == 0


@given(st.data())
def test_hints_are_in_range(data):
    declared = data.draw(symbols())
    known = Facts(declared)
    for s in declared.values():
        value = known.hint(symbol(s.name))
        assert s.lo <= value
        assert s.hi is None or value <= s.hi


def test_products_of_what_is_left_of_sizes():
    known = facts(t=(1, 8), n=(1, None), m=(0, 5))
    m = symbol("m")
    assert known.proved_le(0, n * t - t)
    assert known.proved_le(0, (n - 1) * (t - 1) * m)
    assert known.proved_le(t, n * t)
    assert not known.proved_le(0, m * n - n)
    assert not known.proved_le(0, (n - 2) * t)


def test_intervals():
    known = facts(t=(1, 512), n=(0, None))
    assert known.bounds(2 * t + 3) == (5, 1027)
    assert known.bounds(10 - t) == (-502, 9)
    assert known.bounds(t * n) == (0, None)
    assert known.bounds(ceildiv(t, 16)) == (1, 32)
    assert known.bounds(t % 16) == (0, 15)
    assert known.bounds(minimum(t, n)) == (0, 512)
    assert known.bounds(maximum(t, n)) == (1, None)
    assert known.bounds(7) == (7, 7)


def test_not_proved_is_not_disproved():
    known = facts(t=(1, 512), n=(1, None))
    assert known.proved_le(t, 512)
    assert not known.proved_lt(t, 512)
    assert not known.proved_le(t, n)
    assert not known.proved_le(n, t)
    assert known.proved_ne(t, 0)
    assert not known.proved_ne(t, n)
    assert not known.proved_eq(t, n)
    assert facts(t=(3, 3)).proved_eq(t, 3)


def test_equal_without_being_the_same_polynomial():
    known = facts(n=(1, None))
    half = floordiv(n + 1, 2)  # 2 * half - n is 0 or 1
    assert known.proved_eq(floordiv(n + maximum(0, 2 * half - n), 2), half)
    assert known.proved_eq(maximum(n, 2 * half), 2 * half)
    assert not known.proved_eq(floordiv(n, 2), half)
    assert known.proved_le(floordiv(n, 2), half)


def test_multiples():
    known = Facts({"t": Symbol("t", 8, None, 8), "n": Symbol("n")})
    assert known.multiple(t) == 8
    assert known.multiple(3 * t + 12) == 12
    assert known.multiple(t * t) == 64
    assert known.multiple(t + n) == 1
    assert known.multiple(0) == 0
    assert known.proved_multiple(4 * t * n, 32)
    assert not known.proved_multiple(n, 2)


def test_hints():
    known = Facts({"t": Symbol("t", 1, 512, hint=100), "n": Symbol("n"), "s": Symbol("s", 1, 5)})
    assert known.hint(t + 1) == 101
    assert known.hint(n) == DEFAULT_HINT
    assert known.hint(symbol("s")) == 5


def test_an_undeclared_symbol_is_an_error_that_says_how_to_declare_it():
    with pytest.raises(DimError, match=r"symbol 'n' is not declared(.|\n)*dim n in \[1, \]"):
        facts(t=(1, 2)).bounds(n + 1)
