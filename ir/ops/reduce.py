"""Reductions and scans."""

import numpy as np

from ..op import normalize_axis, op
from ..types import TensorType, bool_, i64


def _reduced(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    if not axes:
        raise TypeError("axes is empty: name at least one")
    gone = {normalize_axis(axis, x.rank) for axis in axes}
    if keepdims:
        return x.with_shape(1 if i in gone else d for i, d in enumerate(x.shape))
    return x.with_shape(d for i, d in enumerate(x.shape) if i not in gone)


@op(kind="reduce")
def sum(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Sum over axes; 0 for an empty one. Accumulates floats in float32, integers in int64."""
    return _reduced(x, axes, keepdims)


@sum.set_reference
def _(x, *, axes, keepdims):
    return x.sum(axes, keepdims=keepdims, dtype=x.dtype)


@op(kind="reduce")
def mean(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Arithmetic mean over axes; NaN for an empty one. Accumulates in float32."""
    return _reduced(x, axes, keepdims)


@mean.set_reference
def _(x, *, axes, keepdims):
    count = np.prod([x.shape[a] for a in axes])
    with np.errstate(invalid="ignore", divide="ignore"):
        return (x.sum(axes, keepdims=keepdims) / x.dtype.type(count)).astype(x.dtype)


@op(kind="reduce")
def max(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Largest element over axes; NaN wins; minus infinity (lowest integer) for an empty one."""
    return _reduced(x, axes, keepdims)


@max.set_reference
def _(x, *, axes, keepdims):
    return x.max(axes, keepdims=keepdims, initial=_lowest(x.dtype))


@op(kind="reduce")
def min(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Smallest element over axes; NaN wins; infinity (highest integer) for an empty one."""
    return _reduced(x, axes, keepdims)


@min.set_reference
def _(x, *, axes, keepdims):
    return x.min(axes, keepdims=keepdims, initial=_highest(x.dtype))


@op(kind="reduce")
def prod(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Product over axes; 1 for an empty one."""
    return _reduced(x, axes, keepdims)


@prod.set_reference
def _(x, *, axes, keepdims):
    return x.prod(axes, keepdims=keepdims, dtype=x.dtype)


@op(kind="reduce")
def any(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """True where some element over axes is true; x is bool."""
    if x.dtype != bool_:
        raise TypeError(f"x is {x}: must be bool")
    return _reduced(x, axes, keepdims)


@any.set_reference
def _(x, *, axes, keepdims):
    return x.any(axes, keepdims=keepdims)


@op(kind="reduce")
def all(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """True where every element over axes is true; x is bool."""
    if x.dtype != bool_:
        raise TypeError(f"x is {x}: must be bool")
    return _reduced(x, axes, keepdims)


@all.set_reference
def _(x, *, axes, keepdims):
    return x.all(axes, keepdims=keepdims)


@op(kind="reduce")
def argmax(x, *, axis: int, keepdims: bool = False):
    """Index (int64) of the first largest element along axis; NaN counts as largest."""
    return _reduced(x, (axis,), keepdims).with_dtype(i64)


@argmax.set_reference
def _(x, *, axis, keepdims):
    return x.argmax(axis, keepdims=keepdims)


@op(kind="reduce")
def argmin(x, *, axis: int, keepdims: bool = False):
    """Index (int64) of the first smallest element along axis; NaN counts as smallest."""
    return _reduced(x, (axis,), keepdims).with_dtype(i64)


@argmin.set_reference
def _(x, *, axis, keepdims):
    return x.argmin(axis, keepdims=keepdims)


@op(kind="scan")
def cumsum(x, *, axis: int):
    """Running sum along axis."""
    normalize_axis(axis, x.rank)
    return x


@cumsum.set_reference
def _(x, *, axis):
    return x.cumsum(axis, dtype=x.dtype)


def _lowest(dtype: np.dtype):
    if dtype == np.bool_:
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.type(-np.inf)


def _highest(dtype: np.dtype):
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.type(np.inf)
