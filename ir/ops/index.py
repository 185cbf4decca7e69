"""Ops in which an index decides which element is read."""

import numpy as np

from ..dim import Dim
from ..faults import checked_index
from ..index_map import Checked, Read
from ..indexing import replaced
from ..op import normalize_axis, op
from ..types import TensorType


@op(kind="gather")
def gather(x, index, *, axis: int = 0):
    """Whole slices of x along axis: out[.., i.., ..] = x[.., index[i..], ..] (an embedding lookup).

    index: any rank, integers in [0, size); running it raises IndexOutOfRange for others.
    """
    axis = normalize_axis(axis, x.rank)
    if not index.dtype.is_integer:
        raise TypeError(f"index is {index}: must be integers")
    return x.with_shape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@gather.set_reference
def _(x, index, *, axis):
    return np.take(x, checked_index("gather", index, x.shape[axis]), axis)


@gather.set_index_map
def _(at, index, x, where, *, axis):
    axis = normalize_axis(axis, x.rank)
    place = at.lookup(1, index[axis : axis + where.rank], x.shape[axis])
    return Read(0, replaced(index, axis, place, where.rank))


@op(kind="gather")
def gather_elements(x, index, *, axis: int):
    """One element each: out[i, j, k] = x[index[i, j, k], j, k] for axis 0, and so on.

    index: integers in [0, size); running it raises IndexOutOfRange for others.
    """
    axis = normalize_axis(axis, x.rank)
    if index.rank != x.rank or not index.dtype.is_integer:
        raise TypeError(f"x is {x}, index is {index}: index must be integers of the same rank")
    return TensorType(index.shape, x.dtype)


def off_axis(x: TensorType, index: TensorType, axis: int) -> list[tuple[Dim, Dim]]:
    """Sizes of index and x along the axes that are not chosen along, where the two go together."""
    pairs = zip(index.shape, x.shape, strict=True)
    return [pair for i, pair in enumerate(pairs) if i != axis % x.rank]


@gather_elements.set_limits
def _(x, index, *, axis):
    return off_axis(x, index, axis)


@gather_elements.set_reference
def _(x, index, *, axis):
    where = tuple(slice(0, n) if i != axis else slice(None) for i, n in enumerate(index.shape))
    index = checked_index("gather_elements", index, x.shape[axis])
    return np.take_along_axis(x[where], index, axis)


@gather_elements.set_index_map
def _(at, index, x, where, *, axis):
    axis = normalize_axis(axis, x.rank)
    return Read(0, replaced(index, axis, at.lookup(1, index, x.shape[axis])))


@op(kind="elementwise")
def check_index(index, *, size: Dim, wraps: bool = False):
    """index, an integer in [0, size); with `wraps` index + size where it is in [-size, 0).

    Running it raises IndexOutOfRange for others. Lookups check what they are given by themselves;
    this is for positions counted from an axis's end, and for parts of a position.
    """
    if not index.dtype.is_integer:
        raise TypeError(f"index is {index}: must be integers")
    return index


@check_index.set_reference
def _(index, *, size, wraps):
    return checked_index("check_index", index, size, wraps=wraps)


@check_index.set_index_map
def _(at, position, index, *, size, wraps):
    return Checked(0, position, size, wraps)
