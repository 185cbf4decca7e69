"""Reductions and scans."""

from collections.abc import Callable
from dataclasses import replace

from ..combine import Combine
from ..op import normalize_axis, op
from ..types import bool_, i64


def _declare(kind: str, rule: Callable, **ops: tuple[Combine, str]) -> None:
    """Ops with one type rule: the combine and the meaning of each."""
    for name, (combine, meaning) in ops.items():
        op(rule, kind=kind, name=name, doc=meaning, combine=combine)


def reduced(x, *, axes: tuple[int, ...], keepdims: bool = False):
    """x without the axes, or with 1 in their place."""
    if not axes:
        raise TypeError("axes is empty: name at least one")
    gone = {normalize_axis(axis, x.rank) for axis in axes}
    if keepdims:
        return x.with_shape(1 if i in gone else d for i, d in enumerate(x.shape))
    return x.with_shape(d for i, d in enumerate(x.shape) if i not in gone)


def _averaged(x, *, axes: tuple[int, ...], keepdims: bool = False):
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: must be float; cast it")
    return reduced(x, axes=axes, keepdims=keepdims)


def _quantified(x, *, axes: tuple[int, ...], keepdims: bool = False):
    if x.dtype != bool_:
        raise TypeError(f"x is {x}: must be bool")
    return reduced(x, axes=axes, keepdims=keepdims)


def _picked(x, *, axis: int, keepdims: bool = False):
    return reduced(x, axes=(axis,), keepdims=keepdims).with_dtype(i64)


def _scanned(x, *, axis: int):
    normalize_axis(axis, x.rank)
    if x.dtype == bool_:
        raise TypeError(f"x is {x}: must be numbers; cast it")
    return x


_ADD, _MUL = Combine("x + y", 0), Combine("x * y", 1)
_MAX, _MIN = Combine("maximum(x, y)", "lowest"), Combine("minimum(x, y)", "highest")

_declare(
    "reduce",
    reduced,
    sum=(_ADD, "Sum over axes; 0 for an empty one. Accumulates floats in float32; integers wrap."),
    max=(
        _MAX,
        "Largest element over axes; NaN wins; minus infinity (lowest integer) for an empty one.",
    ),
    min=(
        _MIN,
        "Smallest element over axes; NaN wins; infinity (highest integer) for an empty one.",
    ),
    prod=(_MUL, "Product over axes; 1 for an empty one."),
)
op(
    _averaged,
    kind="reduce",
    name="mean",
    doc="Arithmetic mean over axes; NaN for an empty one; x is float. Accumulates in float32.",
    combine=_ADD,
    finish="x / count",
)
_declare(
    "reduce",
    _quantified,
    any=(Combine("x | y", False), "True where some element over axes is true; x is bool."),
    all=(Combine("x & y", True), "True where every element over axes is true; x is bool."),
)
_declare(
    "reduce",
    _picked,
    argmax=(
        replace(_MAX, picks_index=True),
        "Index (int64) of the first largest element along axis; NaN counts as largest.",
    ),
    argmin=(
        replace(_MIN, picks_index=True),
        "Index (int64) of the first smallest element along axis; NaN counts as smallest.",
    ),
)
_declare(
    "scan",
    _scanned,
    cumsum=(_ADD, "Running sum along axis. Accumulates floats in float32; integers wrap."),
    cumprod=(_MUL, "Running product along axis. Accumulates floats in float32; integers wrap."),
    cummax=(_MAX, "Largest element so far along axis; NaN wins."),
    cummin=(_MIN, "Smallest element so far along axis; NaN wins."),
)

# of equal ones (infinities above all) there is no difference to take
_LOGADDEXP = "where(x == y, x + 0.6931471805599453, maximum(x, y) + log1p(exp(0 - abs(x - y))))"


@op(kind="scan", combine=Combine(_LOGADDEXP, "lowest"))
def logcumsumexp(x, *, axis: int):
    """Logarithm of the running sum of exp(x) along axis, without overflow; x is float."""
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: must be float")
    return _scanned(x, axis=axis)
