"""Comparisons, logic, operations on bits, and choices by a mask."""

from functools import partial
from typing import Any

from ...ir import types
from ...ir.graph import Value
from ..importer import Call, Declined, handles
from ..nn.shift import shift
from .pointwise import Operand, overloads


def _comparison(op: str) -> Any:
    def compare(call: Call, x: Operand, y: Operand) -> Value:
        dtype = call.common_dtype(x, y)
        return getattr(call.b, op)(call.value(x, dtype), call.value(y, dtype))

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    handles(*overloads(_name))(_comparison(_name))


def _as_bool(call: Call, x: Operand) -> Value:
    """Nonzero, as torch's logical operations read it."""
    value = call.value(x, None if isinstance(x, Value) else types.bool_)
    if value.dtype == types.bool_:
        return value
    return call.b.ne(value, call.value(0, value.dtype))


def _logical(op: str) -> Any:
    return lambda call, *operands: getattr(call.b, op)(*(_as_bool(call, x) for x in operands))


def _bitwise(op: str) -> Any:
    return lambda call, *operands: getattr(call.b, op)(
        *(call.value(x, call.dtype) for x in operands)
    )


for _name, _op in (("and", "and_"), ("or", "or_"), ("xor", "xor"), ("not", "not_")):
    handles(f"logical_{_name}.default")(_logical(_op))
for _name, _op in (("and", "and_"), ("or", "or_"), ("xor", "xor")):
    handles(*overloads(f"bitwise_{_name}", f"__{_name}__"))(_bitwise(_op))
handles("bitwise_not.default")(_bitwise("not_"))


def _shift(call: Call, x: Operand, by: Operand, *, is_left: bool) -> Value:
    if not call.dtype.is_integer:
        raise Declined(f"a shift of {call.dtype}")
    return shift(call.b, call.value(x, call.dtype), call.value(by, call.dtype), is_left=is_left)


for _name, _is_left in (("left", True), ("right", False)):
    handles(*overloads(f"__{_name[0]}shift__"))(partial(_shift, is_left=_is_left))
    _kinds = "Tensor Tensor_Scalar Scalar_Tensor"
    handles(*overloads(f"bitwise_{_name}_shift", kinds=_kinds))(partial(_shift, is_left=_is_left))


@handles(*overloads("where", kinds="self ScalarSelf ScalarOther Scalar"))
def _where(call: Call, condition: Value, x: Operand, y: Operand) -> Value:
    return call.b.where(
        _as_bool(call, condition), call.value(x, call.dtype), call.value(y, call.dtype)
    )


@handles(*overloads("masked_fill"))
def _masked_fill(call: Call, x: Value, mask: Value, value: Operand) -> Value:
    return call.b.where(mask, call.value(value, call.dtype), x)
