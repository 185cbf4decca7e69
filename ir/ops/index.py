"""Ops in which an index decides which element is read or written."""

import numpy as np

from ..op import normalize_axis, op
from ..types import TensorType


@op(kind="gather")
def gather(x, index, *, axis: int = 0):
    """Whole slices of x along axis: out[.., i.., ..] = x[.., index[i..], ..] (an embedding lookup).

    index: any rank, integers in [0, size). The caller guarantees the range.
    """
    axis = normalize_axis(axis, x.rank)
    if not index.dtype.is_integer:
        raise TypeError(f"index is {index}: must be integers")
    return x.with_shape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@gather.set_reference
def _(x, index, *, axis):
    return np.take(x, index, axis)


@op(kind="gather")
def gather_elements(x, index, *, axis: int):
    """One element each: out[i, j, k] = x[index[i, j, k], j, k] for axis 0, and so on."""
    axis = normalize_axis(axis, x.rank)
    if index.rank != x.rank or not index.dtype.is_integer:
        raise TypeError(f"x is {x}, index is {index}: index must be integers of the same rank")
    return TensorType(index.shape, x.dtype)


@gather_elements.set_reference
def _(x, index, *, axis):
    where = tuple(slice(0, n) if i != axis else slice(None) for i, n in enumerate(index.shape))
    return np.take_along_axis(x[where], index, axis)
