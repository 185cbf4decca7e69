"""Ops that put the elements of an axis in order."""

import numpy as np

from ..dim import Dim
from ..indexing import replaced
from ..op import normalize_axis, op
from ..types import TensorType, i64


@op(kind="sort")
def sort(x, *, axis: int = -1, descending: bool = False):
    """Elements along axis in order, and where (int64) each was; equal ones stay in their order.

    NaN is largest; -0 equals 0.
    """
    normalize_axis(axis, x.rank)
    return x, x.with_dtype(i64)


@sort.set_reference
def _(x, *, axis, descending):
    places = _order(x, axis, descending)
    return np.take_along_axis(x, places, axis), places


@op(kind="sort")
def topk(x, *, k: Dim, axis: int = -1, largest: bool = True):
    """The k largest (smallest) elements along axis, in order, and where (int64) each was.

    Of equal ones the first come first. NaN is largest; -0 equals 0.
    """
    axis = normalize_axis(axis, x.rank)
    kept = x.with_shape(replaced(x.shape, axis, k))
    return kept, kept.with_dtype(i64)


@topk.set_limits
def _(x, *, k, axis, largest):
    return [(k, x.shape[axis])]


@topk.set_reference
def _(x, *, k, axis, largest):
    places = np.take(_order(x, axis, largest), np.arange(k), axis)
    return np.take_along_axis(x, places, axis), places


def _axes(x: TensorType, *, axis: int, **_):
    axis = normalize_axis(axis, x.rank)
    return (tuple("it sorts along" if i == axis else i for i in range(x.rank)),)


sort.set_axes(_axes)
topk.set_axes(_axes)


def _range(x: TensorType, *, axis: int, **_):
    return (None, None), (0, x.shape[normalize_axis(axis, x.rank)] - 1)


sort.set_range(_range)
topk.set_range(_range)


def _order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """Places in stable order; NumPy has NaN behind all."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    last = x.shape[axis] - 1
    return last - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
