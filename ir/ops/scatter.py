"""Ops in which an index decides which element is written, or combined with what is there."""

import numpy as np

from ..combine import Combine
from ..faults import checked_index
from ..op import normalize_axis, op
from ..types import TensorType, bool_
from .index import off_axis

# what becomes of x, what is there, and y, what is put there later
COMBINES = {
    "replace": Combine("y"),
    "add": Combine("x + y", 0),
    "mul": Combine("x * y", 1),
    "max": Combine("maximum(x, y)", "lowest"),
    "min": Combine("minimum(x, y)", "highest"),
}
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check(x: TensorType, index: TensorType, updates: TensorType, combine: str) -> None:
    if not index.dtype.is_integer:
        raise TypeError(f"index is {index}: must be integers")
    if updates.dtype != x.dtype:
        raise TypeError(f"x is {x}, updates are {updates}: dtypes must be equal")
    if combine not in COMBINES:
        raise TypeError(f"combine is {combine!r}: must be one of {', '.join(COMBINES)}")
    if x.dtype == bool_ and combine in ("add", "mul"):
        raise TypeError(f"x is {x}: to {combine} needs numbers; cast it")


@op(kind="scatter")
def scatter(x, index, updates, *, axis: int = 0, combine: str = "replace"):
    """x with slices of updates put at index along axis, one after another: gather the other way.

    updates: [..before, *index's, after..]; with `replace` the last of one place stays, with `add`,
    `mul`, `max`, `min` it is combined with what is there, in order of the index. index: any rank,
    integers in [0, size); running it raises IndexOutOfRange for others.
    """
    axis = normalize_axis(axis, x.rank)
    _check(x, index, updates, combine)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if updates.shape != shape:
        raise TypeError(f"updates are {updates}: must be {x.with_shape(shape)}")
    return x


@scatter.set_reference
def _(x, index, updates, *, axis, combine):
    size, axis = x.shape[axis], axis % x.ndim
    places = checked_index("scatter", index, size).reshape(-1)
    out = x.copy()
    if places.size:
        rows = updates.reshape(*x.shape[:axis], places.size, *x.shape[axis + 1 :])
        _put(np.moveaxis(out, axis, 0), places, np.moveaxis(rows, axis, 0), combine)
    return out


@scatter.set_axes
def _(x, index, updates, *, axis, combine):
    axis = normalize_axis(axis, x.rank)
    after = range(axis + 1, x.rank)
    along = (*range(axis), *("it picks along",) * index.rank, *after)
    return (*range(axis), "it writes along", *after), ("it picks along",) * index.rank, along


@op(kind="scatter")
def scatter_elements(x, index, updates, *, axis: int, combine: str = "replace"):
    """x with one element each put in: out[index[i, j, k], j, k] = updates[i, j, k] for axis 0.

    index: of x's rank, no longer than x along other axes; updates: of index's shape. Else as in
    `scatter`.
    """
    normalize_axis(axis, x.rank)
    _check(x, index, updates, combine)
    if index.rank != x.rank or updates.shape != index.shape:
        raise TypeError(f"index is {index}, updates are {updates}: must be of x's rank, and alike")
    return x


@scatter_elements.set_limits
def _(x, index, updates, *, axis, combine):
    return off_axis(x, index, axis)


@scatter_elements.set_reference
def _(x, index, updates, *, axis, combine):
    places = checked_index("scatter_elements", index, x.shape[axis])
    out = x.copy()
    where = list(np.indices(index.shape, sparse=True))
    where[axis] = places
    _put(out, tuple(where), updates, combine)
    return out


@scatter_elements.set_axes
def _(x, index, updates, *, axis, combine):
    axis = normalize_axis(axis, x.rank)
    lies = [i if x.shape[i] == index.shape[i] else "it writes along" for i in range(x.rank)]
    lies[axis] = "it writes along"
    picks = [("it picks along" if i == axis else at) for i, at in enumerate(lies)]
    return tuple(lies), tuple(picks), tuple(picks)


def _put(out: np.ndarray, where, updates: np.ndarray, combine: str) -> None:
    if combine == "replace":
        out[where] = updates  # of equal places the last one stays
    else:
        _UFUNCS[combine].at(out, where, updates)
