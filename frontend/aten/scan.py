"""Running sums, products, extremes."""

from typing import Any

from ...ir import types
from ...ir.graph import Value
from ..importer import Call, handles


def _running(op: str) -> Any:
    def scan(call: Call, x: Value, dim: int, dtype: Any = None) -> Value:
        return getattr(call.b, op)(call.value(x, call.dtype), axis=dim)

    return scan


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    handles(f"{_name}.default", of_numbers=True)(_running(_name))


def _running_extreme(op: str) -> Any:
    def scan(call: Call, x: Value, dim: int) -> tuple[Value, Value]:
        # the place of the latest element that is as large as any so far; of a NaN, the latest
        b, axis = call.b, dim % x.type.rank
        x = call.value(x, types.u8) if x.dtype == types.bool_ else x
        extreme = getattr(b, op)(x, axis=axis)
        size = x.shape[axis]
        at = b.iota(length=size, dtype=types.i64)
        at = call.reshape(at, (size, *(1,) * (x.type.rank - 1 - axis)))
        is_one = b.eq(x, extreme)
        if x.dtype.is_float:
            is_one = b.or_(is_one, b.isnan(x))
        places = b.where(is_one, at, call.value(0, types.i64))
        return call.value(extreme, call.dtype), b.cummax(places, axis=axis)

    return scan


for _name in ("cummax", "cummin"):
    handles(f"{_name}.default", of_numbers=True)(_running_extreme(_name))
