"""Where axes lie: read off index maps and decompositions, with reasons where an op mixes."""

import pytest

from tilewright.ir.axes import DIFFERENT, TOLD, Axes
from tilewright.ir.builder import Builder
from tilewright.ir.index_map import Choose, Fill, Read
from tilewright.ir.op import OPS, op
from tilewright.ir.types import i64


@pytest.fixture
def b():
    return Builder("g")


@pytest.fixture
def throw_away():
    before = set(OPS)
    yield
    for name in set(OPS) - before:
        del OPS[name]


def axes_of(value):
    b = Builder("facts")
    b.dim("t", 1, 64)
    return Axes(b.graph([]).facts).of(value.node)


def test_reshapes_keep_the_axes_that_they_neither_merge_nor_split(b):
    t = b.dim("t", 1, 64)
    x = b.input("x", (1, t, 12))
    assert axes_of(b.reshape(x, shape=(1, t, 3, 4))) == ((0, 1, "it works along"),)
    assert axes_of(b.reshape(x, shape=(t, 12))) == ((None, 0, 1),)
    assert axes_of(b.reshape(x, shape=(1, t * 12)))[0][1] == "it merges"
    assert axes_of(b.transpose(x, perm=(1, 2, 0))) == ((2, 0, 1),)


def test_lookups_lay_the_index_where_they_picked(b):
    t = b.dim("t", 1, 64)
    x, at = b.input("x", (5, t, 7)), b.input("at", (2, 3), i64)
    assert axes_of(b.gather(x, at, axis=2)) == ((0, 1, "it picks along"), (2, 3))


def test_operands_that_cross_are_told(b):
    x = b.input("x", (4, 4))
    axes = Axes(b.graph([]).facts)
    node = b.matmul(x, x, transpose_w=True).node
    assert axes.follow(node, [0, 0]) == DIFFERENT
    assert axes.follow(node, [0, None]) == 0
    assert axes.follow(node, [1, None]) == "it sums over"


def test_a_view_that_tells_places_apart_says_so(b, throw_away):
    @op(kind="view")
    def lower_triangle(x):
        return x

    @lower_triangle.set_index_map
    def _(at, index, x):
        return Choose(index[0], index[1], Fill(0.0), Read(0, index))

    @op(kind="view")
    def diagonal(x):
        return x.with_shape(x.shape[1:])

    @diagonal.set_index_map
    def _(at, index, x):
        return Read(0, (index[0], *index))

    x = b.input("x", (4, 4, 3))
    assert axes_of(b.lower_triangle(x)) == ((TOLD, TOLD, 2),)
    assert axes_of(b.diagonal(x)) == ((TOLD, TOLD, 1),)


def test_a_composite_that_numbers_places_says_so(b, throw_away):
    @op(kind="composite")
    def numbered(x):
        return x

    @numbered.set_decomposition
    def _(b, x):
        rows = x.shape[0]
        numbers = b.cast(b.iota(length=rows), dtype=x.dtype)
        return b.softmax(b.add(x, b.reshape(numbers, shape=(rows, 1))), axis=1)

    assert axes_of(b.numbered(b.input("x", (4, 6)))) == ((TOLD, "it reduces"),)
    assert axes_of(b.softmax(b.input("y", (4, 6)), axis=1)) == ((0, "it reduces"),)
