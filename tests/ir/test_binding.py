"""Binders: from shapes to the values of symbols, with every disagreement reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.ir.binder import ArgumentSpec, Binder
from tilewright.ir.dim import Symbol, evaluate, symbol
from tilewright.ir.errors import DimError

from .strategies import NAMES, dim_expressions, symbols, values_of

t, n = symbol("t"), symbol("n")


def binder(shapes, **declared):
    specs = [ArgumentSpec(name, shape) for name, shape in shapes.items()]
    return Binder(specs, {name: Symbol(name, *r) for name, r in declared.items()})


def test_symbols_are_bound_wherever_they_stand_alone():
    bind = binder({"x": (t, 4), "y": (t, n)}, t=(1, 8), n=(1, None)).bind
    assert bind([(3, 4), (3, 7)]) == {"t": 3, "n": 7}


def test_symbols_are_solved_from_linear_dims():
    assert binder({"x": (2 * t + 1,)}, t=(1, 8)).bind([(7,)]) == {"t": 3}
    with pytest.raises(DimError, match=r"x axis 0 is 8, declared 2\*t \+ 1: no whole t fits"):
        binder({"x": (2 * t + 1,)}, t=(1, 8)).bind([(8,)])


def test_a_plain_place_is_preferred_to_one_that_must_be_solved():
    b = binder({"x": (2 * t + 1,), "y": (t,)}, t=(1, 8))
    assert b.bind([(7,), (3,)]) == {"t": 3}
    with pytest.raises(DimError, match=r"x axis 0 is 9, must be 7 \(2\*t \+ 1\)"):
        b.bind([(9,), (3,)])


@given(st.data())
def test_what_was_evaluated_is_bound_back(data):
    declared = data.draw(symbols())
    values = data.draw(values_of(declared))
    plain = tuple(symbol(name) for name in NAMES)
    more = tuple(data.draw(st.lists(dim_expressions(), max_size=3)))
    specs = [ArgumentSpec("more", more), ArgumentSpec("plain", plain)]
    shapes = [tuple(evaluate(d, values) for d in shape) for shape in (more, plain)]
    assert Binder(specs, declared).bind(shapes) == values


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((9, 4), r"dim t \(x axis 0\) is 9, its range is \[1, 8\]"),
        ((0, 4), r"dim t \(x axis 0\) is 0, its range is \[1, 8\]"),
        ((3, 5), "x axis 1 is 5, must be 4"),
        ((3,), r"x has rank 1 \(\[3\]\), declared rank 2 \[t, 4\]"),
    ],
)
def test_a_size_that_does_not_fit_is_named(shape, message):
    with pytest.raises(DimError, match=message):
        binder({"x": (t, 4)}, t=(1, 8)).bind([shape])


def test_all_problems_are_reported_at_once():
    b = binder({"x": (t,), "y": (n,)}, t=(1, 8), n=(1, 4, 2))
    with pytest.raises(DimError) as error:
        b.bind([(9,), (3,)])
    assert "dim t (x axis 0) is 9" in str(error.value)
    assert "dim n (y axis 0) is 3, must be a multiple of 2" in str(error.value)
    assert "pass sizes in range" in str(error.value)


def test_a_symbol_that_no_input_has():
    with pytest.raises(DimError, match="n appears in no input"):
        binder({"x": (t,)}, t=(1, 8), n=(1, 4)).bind([(2,)])
    assert binder({"x": (t,)}, t=(1, 8), n=(1, 4)).bind([(2,)], {"n": 3}) == {"n": 3, "t": 2}
