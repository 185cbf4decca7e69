"""Tensors made from numbers and sizes."""

from typing import Any

from ...ir import types
from ...ir.dim import Dim, Expr
from ...ir.graph import Value
from ..dtypes import as_declared
from ..importer import Call, Declined, Scalar, handles


def _filled(call: Call, value: Value | Scalar) -> Value:
    dtype = call.dtype
    if isinstance(value, Value | Expr):
        return call.broadcast(call.value(value, dtype), call.shape)
    return call.b.full(value=as_declared(value, dtype), shape=call.shape, dtype=dtype)


@handles("full.default", "full_like.default", "new_full.default", "scalar_tensor.default")
@handles("fill.Scalar", "fill.Tensor")
def _full(call: Call, *like_and_value: Any, **__: Any) -> Value:
    # full(size, value), full_like(x, value), new_full(x, size, value), scalar_tensor(value)
    return _filled(call, like_and_value[-1])


@handles("ones.default", "ones_like.default", "new_ones.default")
def _ones(call: Call, *_: Any, **__: Any) -> Value:
    return _filled(call, 1)


@handles(
    *("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default"),
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty_strided.default",
)
def _zeros(call: Call, *_: Any, **__: Any) -> Value:
    # whatever a reader finds in fresh storage is a legal value; 0 is the same in every run
    return _filled(call, 0)


@handles("arange.default", "arange.start", "arange.start_step")
def _arange(call: Call, *bounds: Scalar, **__: Any) -> Value:
    # arange(end), arange(start, end), arange(start, end, step)
    start, step = (0 if len(bounds) == 1 else bounds[0]), (bounds[2] if len(bounds) > 2 else 1)
    length, dtype, b = call.shape[0], call.dtype, call.b
    if dtype.is_integer:
        start, step = (int(x) if isinstance(x, float) else x for x in (start, step))
    if isinstance(start, int | Expr) and isinstance(step, int):
        return b.iota(length=length, start=start, step=step, dtype=dtype)
    if isinstance(step, Expr):
        raise Declined(f"arange in steps of {step}")
    # fractional bounds: count, then scale, in float64 as torch does
    count = b.iota(length=length, dtype=types.f64)
    scaled = b.mul(count, call.parameter(step, types.f64))
    return b.cast(b.add(scaled, call.parameter(start, types.f64)), dtype=dtype)


@handles("linspace.default")
def _linspace(call: Call, start: Scalar, end: Scalar, steps: Dim, **__: Any) -> Value:
    count = call.static(call.shape[0], "the number of steps")
    if isinstance(start, Expr | Value) or isinstance(end, Expr | Value):
        raise Declined("linspace between numbers that are computed")
    # torch takes the ends in the result's dtype, and the step too unless that is an integer
    b, dtype = call.b, call.dtype
    start, end = dtype.element(start), dtype.element(end)
    if count == 1:
        return _filled(call, start)
    step = (float(end) - float(start)) / (count - 1)
    step = float(dtype.element(step)) if dtype.is_float else step

    def way(first: int, direction: int) -> Value:
        steps = b.iota(length=count, start=first, step=direction, dtype=types.f64)
        product = b.mul(steps, call.parameter(step, types.f64))
        is_narrow = dtype.is_float and dtype.bits < 32  # a narrow product is rounded before the sum
        return call.value(call.value(product, dtype), types.f64) if is_narrow else product

    # from the nearer end, so that both ends are met exactly
    start, end = (call.parameter(float(x), types.f64) for x in (start, end))
    is_near = b.lt(b.iota(length=count), call.value(count // 2, types.i64))
    exact = b.where(is_near, b.add(start, way(0, 1)), b.sub(end, way(count - 1, -1)))
    return call.value(exact, dtype)


@handles("eye.default", "eye.m")
def _eye(call: Call, *_: Any, **__: Any) -> Value:
    b, (rows, columns) = call.b, call.shape
    row = call.reshape(b.iota(length=rows), (rows, 1))
    return call.value(b.eq(b.iota(length=columns), row), call.dtype)
