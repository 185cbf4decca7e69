"""Reductions and scans."""

from ..combine import Combine
from ..op import normalize_axis, op
from ..types import TensorType, bool_, i64


def reduced_type(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    """x without the axes, or with 1 in their place."""
    if not axes:
        raise TypeError("axes is empty: name at least one")
    gone = {normalize_axis(axis, x.rank) for axis in axes}
    if keepdims:
        return x.with_shape(1 if i in gone else d for i, d in enumerate(x.shape))
    return x.with_shape(d for i, d in enumerate(x.shape) if i not in gone)


@op(kind="reduce", combine=Combine("x + y", 0))
def sum(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Sum over axes; 0 for an empty one. Accumulates floats in float32; integers wrap."""
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("x + y", 0), finish="x / count")
def mean(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Arithmetic mean over axes; NaN for an empty one. Accumulates in float32."""
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("maximum(x, y)", "lowest"))
def max(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Largest element over axes; NaN wins; minus infinity (lowest integer) for an empty one."""
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("minimum(x, y)", "highest"))
def min(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Smallest element over axes; NaN wins; infinity (highest integer) for an empty one."""
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("x * y", 1))
def prod(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """Product over axes; 1 for an empty one."""
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("x | y", False))
def any(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """True where some element over axes is true; x is bool."""
    if x.dtype != bool_:
        raise TypeError(f"x is {x}: must be bool")
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("x & y", True))
def all(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """True where every element over axes is true; x is bool."""
    if x.dtype != bool_:
        raise TypeError(f"x is {x}: must be bool")
    return reduced_type(x, axes, keepdims)


@op(kind="reduce", combine=Combine("maximum(x, y)", "lowest", picks_index=True))
def argmax(x, *, axis: int, keepdims: bool = False):
    """Index (int64) of the first largest element along axis; NaN counts as largest."""
    return reduced_type(x, (axis,), keepdims).with_dtype(i64)


@op(kind="reduce", combine=Combine("minimum(x, y)", "highest", picks_index=True))
def argmin(x, *, axis: int, keepdims: bool = False):
    """Index (int64) of the first smallest element along axis; NaN counts as smallest."""
    return reduced_type(x, (axis,), keepdims).with_dtype(i64)


def _scanned(x: TensorType, axis: int) -> TensorType:
    normalize_axis(axis, x.rank)
    if x.dtype == bool_:
        raise TypeError(f"x is {x}: must be numbers; cast it")
    return x


@op(kind="scan", combine=Combine("x + y", 0))
def cumsum(x, *, axis: int):
    """Running sum along axis. Accumulates floats in float32; integers wrap."""
    return _scanned(x, axis)


@op(kind="scan", combine=Combine("x * y", 1))
def cumprod(x, *, axis: int):
    """Running product along axis. Accumulates floats in float32; integers wrap."""
    return _scanned(x, axis)


@op(kind="scan", combine=Combine("maximum(x, y)", "lowest"))
def cummax(x, *, axis: int):
    """Largest element so far along axis; NaN wins."""
    return _scanned(x, axis)


@op(kind="scan", combine=Combine("minimum(x, y)", "highest"))
def cummin(x, *, axis: int):
    """Smallest element so far along axis; NaN wins."""
    return _scanned(x, axis)


# of equal ones (infinities above all) there is no difference to take
_LOGADDEXP = "where(x == y, x + 0.6931471805599453, maximum(x, y) + log1p(exp(0 - abs(x - y))))"


@op(kind="scan", combine=Combine(_LOGADDEXP, "lowest"))
def logcumsumexp(x, *, axis: int):
    """Logarithm of the running sum of exp(x) along axis, without overflow; x is float."""
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: must be float")
    return _scanned(x, axis)
