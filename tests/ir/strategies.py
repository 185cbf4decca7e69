"""Hypothesis strategies: dims, values of their symbols, and graphs."""

from hypothesis import strategies as st

from tilewright.ir import dim as dims
from tilewright.ir.dim import Symbol

from .random_graphs import random_graph

NAMES = ("a", "b", "s")
CALLS = (dims.floordiv, dims.mod, dims.minimum, dims.maximum, dims.ceildiv)


def dim_expressions(names=NAMES, size=8):
    """Dims over `names`: polynomials with quotients, remainders, minima and maxima."""
    leaves = st.one_of(st.integers(-9, 20), st.sampled_from([dims.symbol(n) for n in names]))
    positive = st.one_of(st.integers(1, 16), st.sampled_from([dims.symbol(n) for n in names]))

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
            st.tuples(st.sampled_from(CALLS[:2]), inner, positive).map(lambda p: p[0](p[1], p[2])),
            st.tuples(st.sampled_from(CALLS[2:4]), inner, inner).map(lambda p: p[0](p[1], p[2])),
            st.tuples(inner, st.integers(1, 16)).map(lambda p: dims.ceildiv(*p)),
        )

    return st.recursive(leaves, grow, max_leaves=size)


@st.composite
def symbols(draw, names=NAMES):
    """Declarations of `names`, with ranges of positive numbers, and multiples."""
    declared = {}
    for name in names:
        multiple = draw(st.sampled_from((1, 1, 1, 2, 8)))
        low = draw(st.integers(1, 4)) * multiple
        high = draw(st.one_of(st.none(), st.integers(0, 6).map(lambda k, m=multiple: k * m)))
        top = None if high is None else low + high
        declared[name] = Symbol(name, low, top, multiple)
    return declared


@st.composite
def values_of(draw, declared):
    """A value in range for each declared symbol."""
    values = {}
    for s in declared.values():
        most = s.lo + 5 * s.multiple if s.hi is None else s.hi
        steps = (most - s.lo) // s.multiple
        values[s.name] = s.lo + draw(st.integers(0, steps)) * s.multiple
    return values


def graphs(**options):
    """Random graphs: see `random_graph`."""
    return st.randoms(use_true_random=False).map(lambda rng: random_graph(rng, **options))
