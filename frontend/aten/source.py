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


@handles("full.default", "full_like.default", "new_full.default")
def _full(call: Call, *like_and_value: Any, **__: Any) -> Value:
    # full(size, value), full_like(x, value), new_full(x, size, value)
    return _filled(call, like_and_value[-1])


@handles("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default")
def _zeros(call: Call, *_: Any, **__: Any) -> Value:
    return _filled(call, 0)


@handles("ones.default", "ones_like.default", "new_ones.default")
def _ones(call: Call, *_: Any, **__: Any) -> Value:
    return _filled(call, 1)


@handles(
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty_strided.default",
)
def _empty(call: Call, *_: Any, **__: Any) -> Value:
    # whatever a reader finds in fresh storage is a legal value; 0 is the same in every run
    return _filled(call, 0)


@handles("fill.Scalar")
def _fill(call: Call, _x: Value, value: Scalar) -> Value:
    return _filled(call, value)


@handles("fill.Tensor")
def _fill_tensor(call: Call, _x: Value, value: Value) -> Value:
    return call.broadcast(call.value(value, call.dtype), call.shape)


@handles("scalar_tensor.default")
def _scalar_tensor(call: Call, value: Scalar, **_: Any) -> Value:
    return _filled(call, value)


@handles("arange.default", "arange.start", "arange.start_step")
def _arange(call: Call, *bounds: Scalar, **__: Any) -> Value:
    # arange(end), arange(start, end), arange(start, end, step)
    start, step = (0 if len(bounds) == 1 else bounds[0]), (bounds[2] if len(bounds) > 2 else 1)
    length, dtype, b = call.shape[0], call.dtype, call.b
    if isinstance(start, int | Expr) and isinstance(step, int):
        return b.iota(length=length, start=start, step=step, dtype=dtype)
    if isinstance(step, Expr):
        raise Declined(f"arange in steps of {step}")
    # fractional bounds: count, then scale
    count = b.iota(length=length, dtype=dtype)
    return b.add(b.mul(count, call.parameter(step)), call.parameter(start))


@handles("linspace.default")
def _linspace(call: Call, start: Scalar, end: Scalar, steps: Dim, **__: Any) -> Value:
    count = call.static(call.shape[0], "the number of steps")
    if isinstance(start, Expr) or isinstance(end, Expr):
        raise Declined("linspace between sizes")
    step = (end - start) / (count - 1) if count > 1 else 0
    # from the nearer end, as torch does, so that both ends are met exactly
    b, step = call.b, call.parameter(step)
    place = b.iota(length=count, dtype=call.dtype)
    back = b.iota(length=count, start=count - 1, step=-1, dtype=call.dtype)
    first = b.add(b.mul(place, step), call.parameter(start))
    second = b.sub(call.parameter(end), b.mul(back, step))
    return b.where(b.lt(b.iota(length=count), call.value(count // 2, types.i64)), first, second)


@handles("eye.default", "eye.m")
def _eye(call: Call, *_: Any, **__: Any) -> Value:
    b, (rows, columns) = call.b, call.shape
    row = call.reshape(b.iota(length=rows), (rows, 1))
    return call.value(b.eq(b.iota(length=columns), row), call.dtype)
