"""Reductions, and softmax over an axis."""

import math
from typing import Any

from ...ir import types
from ...ir.dim import Dim, Expr, product
from ...ir.graph import Value
from ...ir.types import DType
from ..dtypes import from_torch
from ..importer import Call, Declined, Scalar, handles
from .index import columns, nonzero_static

Axes = int | tuple[int, ...] | None
INF = math.inf


def axes_of(x: Value, dim: Axes) -> tuple[int, ...]:
    """Axes counted from the front; all of them for None or an empty tuple, as in torch."""
    if dim is None or dim == ():
        return tuple(range(x.type.rank))
    dims = dim if isinstance(dim, tuple) else (dim,)
    return tuple(sorted(axis % x.type.rank for axis in dims)) if x.type.rank else ()


def fold(call: Call, op: str, x: Value, dim: Axes, keepdim: bool) -> Value:
    """One of our reductions over axes; x itself when it has none."""
    axes = axes_of(x, dim)
    return getattr(call.b, op)(x, axes=axes, keepdims=keepdim) if axes else x


def _fold_in(op: str) -> Any:
    def apply(
        call: Call, x: Value, dim: Axes = None, keepdim: bool = False, dtype: Any = None
    ) -> Value:
        return fold(call, op, call.value(x, call.dtype), dim, keepdim)

    return apply


for _name, _of_axes in (("sum", "dim_IntList"), ("mean", "dim"), ("prod", "dim_int")):
    handles(f"{_name}.default", f"{_name}.{_of_axes}")(_fold_in(_name))


def _extremum(op: str) -> Any:
    def find(call: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
        of_bools = {"max": "any", "min": "all"}[op]
        return fold(call, of_bools if x.dtype == types.bool_ else op, x, dim, keepdim)

    return find


def _extremum_and_place(op: str) -> Any:
    def find(call: Call, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        place = getattr(call.b, f"arg{op}")(x, axis=dim, keepdims=keepdim)
        return _extremum(op)(call, x, dim, keepdim), place

    return find


def _arg(op: str) -> Any:
    def locate(call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is not None:
            return getattr(call.b, op)(x, axis=dim, keepdims=keepdim)
        flat = getattr(call.b, op)(call.reshape(x, (x.type.numel,)), axis=0)
        return call.reshape(flat, (1,) * x.type.rank) if keepdim else flat

    return locate


for _name in ("max", "min"):
    handles(f"a{_name}.default", f"{_name}.default")(_extremum(_name))
    handles(f"{_name}.dim", of_numbers=True)(_extremum_and_place(_name))
    handles(f"arg{_name}.default", of_numbers=True)(_arg(f"arg{_name}"))


def _quantifier(op: str) -> Any:
    def quantify(call: Call, x: Value, dim: Axes = None, keepdim: bool = False) -> Value:
        if x.dtype != types.bool_:
            x = call.b.ne(x, call.value(0, x.dtype))
        return call.value(fold(call, op, x, dim, keepdim), call.dtype)  # of uint8 torch gives that

    return quantify


for _name in ("any", "all"):
    handles(f"{_name}.default", f"{_name}.dim", f"{_name}.dims")(_quantifier(_name))


@handles("softmax.int", "_softmax.default", of_numbers=True)
def _softmax(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
    return call.b.softmax(call.value(x, call.dtype), axis=dim)


@handles("log_softmax.int", "_log_softmax.default", of_numbers=True)
def _log_softmax(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
    b, x = call.b, call.value(x, call.dtype)
    shifted = b.sub(x, b.max(x, axes=(dim,), keepdims=True))
    return b.sub(shifted, b.log(b.sum(b.exp(shifted), axes=(dim,), keepdims=True)))


# ---- moments -------------------------------------------------------------------------------


def variance(call: Call, x: Value, dim: Axes, correction: Scalar, keepdim: bool) -> Value:
    """Mean squared distance from the mean, over n - correction."""
    b, axes = call.b, axes_of(x, dim)
    centered = b.sub(x, b.mean(x, axes=axes, keepdims=True))
    square = b.mul(centered, centered)
    if correction == 0:
        return b.mean(square, axes=axes, keepdims=keepdim)
    total = b.sum(square, axes=axes, keepdims=keepdim)
    count = product(x.shape[axis] for axis in axes)
    return b.div(total, _degrees(call, count, correction, x.dtype))


def _degrees(call: Call, count: Dim, correction: Scalar, dtype: DType) -> Value:
    """max(n - correction, 0), as torch has it, unrounded whatever the dtype."""
    if isinstance(count, int) and not isinstance(correction, Expr | Value):
        return call.parameter(max(count - correction, 0), dtype)
    least = call.b.sub(call.value(count, dtype), call.parameter(correction, dtype))
    return call.b.maximum(least, call.value(0, dtype))


@handles("var.correction", "std.correction", of_numbers=True)
def _var(
    call: Call, x: Value, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False
) -> Value:
    wide = call.value(x, _wide(x.dtype))
    result = variance(call, wide, dim, 1 if correction is None else correction, keepdim)
    result = call.b.sqrt(result) if str(call.target).startswith("aten.std") else result
    return call.value(result, x.dtype)


def _wide(dtype: DType) -> DType:
    """What squares and powers are in, which narrow floats cannot hold."""
    return types.f64 if dtype == types.f64 else types.f32


@handles("var.dim", "std.dim", of_numbers=True)
def _var_dim(
    call: Call, x: Value, dim: Axes, unbiased: bool = True, keepdim: bool = False
) -> Value:
    return _var(call, x, dim, int(unbiased), keepdim)


@handles("var.default", "std.default", of_numbers=True)
def _var_default(call: Call, x: Value, unbiased: bool = True) -> Value:
    return _var(call, x, None, int(unbiased))


@handles("var_mean.correction", of_numbers=True)
def _var_mean(
    call: Call, x: Value, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _var(call, x, dim, correction, keepdim), fold(call, "mean", x, dim, keepdim)


@handles("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(
    call: Call,
    x: Value,
    ord: Scalar | None = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    if isinstance(ord, Expr | Value):
        raise Declined("the order of a norm is computed: must be a known number")
    x = call.value(x, from_torch(dtype) if dtype is not None else call.dtype)
    return call.value(_norm_of(call, call.value(x, _wide(x.dtype)), ord, dim, keepdim), x.dtype)


def _norm_of(call: Call, x: Value, ord: float | None, dim: Axes, keepdim: bool) -> Value:
    b = call.b
    if ord in (None, 2):
        return b.sqrt(fold(call, "sum", b.mul(x, x), dim, keepdim))
    if ord == 1:
        return fold(call, "sum", b.abs(x), dim, keepdim)
    size = b.abs(x)
    if ord in (INF, -INF):
        return fold(call, "max" if ord == INF else "min", size, dim, keepdim)
    if ord == 0:
        return fold(call, "sum", call.value(b.ne(x, call.value(0, x.dtype)), x.dtype), dim, keepdim)
    total = fold(call, "sum", b.pow(size, call.parameter(ord, x.dtype)), dim, keepdim)
    return b.pow(total, call.parameter(1 / ord, x.dtype))


@handles("_cdist_forward.default")
def _cdist(call: Call, x: Value, y: Value, p: float, _mode: int | None) -> Value:
    # the norm of every row of x less every row of y
    left = call.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    right = call.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return _norm(call, call.b.sub(left, right), p, dim=-1)


@handles("_pdist_forward.default")
def _pdist(call: Call, x: Value, p: float = 2.0) -> Value:
    # the norm of every row less each of those after it
    b, row = call.b, call.b.iota(length=x.shape[0])
    later = b.lt(call.reshape(row, (x.shape[0], 1)), row)
    places = nonzero_static(call, later, size=call.shape[0])
    left, right = (b.gather(x, column, axis=0) for column in columns(call, places))
    return _norm(call, b.sub(left, right), p, dim=-1)
