"""Sorting, and the elements at a place in that order. All of ours are stable."""

import math
from typing import Any

from ...ir import types
from ...ir.dim import Dim, floordiv, maximum, minimum
from ...ir.errors import ShapeError
from ...ir.graph import Value
from ...ir.ops.scatter import COMBINES
from ..importer import Call, handles
from ..nn.pad import part


@handles("sort.default", "sort.stable", of_numbers=True)
def _sort(
    call: Call, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Value, Value]:
    return call.b.sort(x, axis=dim % x.type.rank, descending=descending)


@handles("argsort.default", "argsort.stable", of_numbers=True)
def _argsort(call: Call, x: Value, *args: Any, **options: Any) -> Value:
    return _sort(call, x, *args, **options)[1]


@handles("msort.default", of_numbers=True)
def _msort(call: Call, x: Value) -> Value:
    return _sort(call, x, 0)[0]


@handles("topk.default", of_numbers=True)
def _topk(
    call: Call, x: Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    return call.b.topk(x, k=k, axis=dim % x.type.rank, largest=largest)


def _at_rank(call: Call, x: Value, rank: Dim, axis: int, keepdim: bool) -> tuple[Value, Value]:
    """The element of this rank, counted from the smallest, and where it is."""
    if x.shape[axis] == 0:
        raise ShapeError(
            "an axis without elements has none of any rank",
            facts=f"x is {x.type}, the axis {axis}",
            fix="leave out what is empty, or ask for the median of all elements",
        )
    found = call.b.topk(x, k=rank + 1, axis=axis, largest=False)
    found = tuple(part(call.b, v, axis, rank, rank + 1) for v in found)
    if keepdim:
        return found
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(call.reshape(v, shape) for v in found)


@handles("mode.default", of_numbers=True)
def _mode(call: Call, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """What comes most often along an axis, the first in order of such, and its last place."""
    b, axis = call.b, dim % x.type.rank
    ordered, places = b.sort(x, axis=axis, descending=False)
    at, zero = b.iota(length=x.shape[axis]), call.value(0, types.i64)
    before = b.gather(ordered, b.maximum(b.sub(at, call.value(1, types.i64)), zero), axis=axis)
    at = call.reshape(at, (x.shape[axis], *(1,) * (x.type.rank - 1 - axis)))
    start = b.cummax(b.where(b.ne(ordered, before), at, zero), axis=axis)
    most = b.argmax(b.sub(at, start), axis=axis, keepdims=True)  # equal elements lie together
    found = (b.gather_elements(v, most, axis=axis) for v in (ordered, places))
    shape = (*x.shape[:axis], *(1,) * keepdim, *x.shape[axis + 1 :])
    value, place = (call.reshape(v, shape) for v in found)
    return value, place


@handles("kthvalue.default", of_numbers=True)
def _kthvalue(
    call: Call, x: Value, k: Dim, dim: int = -1, keepdim: bool = False
) -> tuple[Value, Value]:
    return _at_rank(call, x, k - 1, dim % x.type.rank, keepdim)


@handles("median.dim", of_numbers=True)
def _median_dim(call: Call, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    b, axis = call.b, dim % x.type.rank
    value, place = _at_rank(call, x, floordiv(x.shape[axis] - 1, 2), axis, keepdim)
    if not x.dtype.is_float:
        return value, place
    top = b.max(x, axes=(axis,), keepdims=keepdim)
    is_nan = b.isnan(top)  # of the row: its median is one
    where = b.argmax(x, axis=axis, keepdims=keepdim)
    return b.where(is_nan, top, value), b.where(is_nan, where, place)


@handles("nanmedian.dim", of_numbers=True)
def _nanmedian_dim(call: Call, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The median of what is a number; NaN is last in order, so the first of its rank are not."""
    if not x.dtype.is_float:
        return _median_dim(call, x, dim, keepdim)
    b, axis = call.b, dim % x.type.rank
    ordered, places = b.sort(x, axis=axis, descending=False)
    present = call.value(b.not_(b.isnan(x)), types.i64)
    last = b.sub(b.sum(present, axes=(axis,), keepdims=True), call.value(1, types.i64))
    rank = b.maximum(b.floordiv(last, call.value(2, types.i64)), call.value(0, types.i64))
    found = tuple(b.gather_elements(v, rank, axis=axis) for v in (ordered, places))
    if keepdim:
        return found
    return tuple(call.reshape(v, (*x.shape[:axis], *x.shape[axis + 1 :])) for v in found)


@handles("nanmedian.default", of_numbers=True)
def _nanmedian(call: Call, x: Value) -> Value:
    return _nanmedian_dim(call, call.reshape(x, (x.type.numel,)), 0)[0]


@handles("median.default", of_numbers=True)
def _median(call: Call, x: Value, **_: Any) -> Value:
    b, x = call.b, call.reshape(x, (x.type.numel,))
    count = x.shape[0]
    if call.facts.proved_le(1, count):
        return _median_dim(call, x, 0)[0]
    # of no elements torch gives NaN or the lowest integer: one more, that is last or first in order
    if x.dtype.is_float:
        last, rank = b.constant(math.nan, x.dtype), floordiv(maximum(count - 1, 0), 2)
    else:
        lowest = COMBINES["max"].identity_of(x.dtype)
        last, rank = b.constant(lowest, x.dtype), minimum(floordiv(count + 1, 2), count)
    value, _ = _at_rank(call, b.concat(x, call.reshape(last, (1,)), axis=0), rank, 0, False)
    return b.where(b.any(b.isnan(x), axes=(0,)), last, value) if x.dtype.is_float else value
