"""Comparisons, logic, operations on bits, and choices by a mask."""

from typing import Any

from ...ir import types
from ...ir.graph import Value
from ..importer import Call, Declined, handles
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


def _shift(is_left: bool) -> Any:
    def shift(call: Call, x: Operand, by: Operand) -> Value:
        """X times or over 2 ** by, which leaves at most the sign unless by is in [0, bits)."""
        b, dtype = call.b, call.dtype
        if not dtype.is_integer:
            raise Declined(f"a shift of {dtype}")
        top, zero = dtype.bits - 1, call.value(0)
        by = call.value(by, dtype)
        is_off = b.or_(b.lt(by, zero), b.gt(by, call.value(top)))
        by = b.where(is_off, call.value(top), by)
        shifted = call.value(x, dtype)
        # by 1, 2, 4, ..., whichever are bits of `by`: constants, none of them beyond the dtype
        for step in (1 << bit for bit in range(top.bit_length())):
            factor = call.value(2**step)
            moved = b.mul(shifted, factor) if is_left else b.floordiv(shifted, factor)
            is_set = b.ne(b.and_(by, call.value(step)), zero)
            shifted = b.where(is_set, moved, shifted)
        leaves_sign = not is_left and dtype.element(-1) < 0
        return shifted if leaves_sign else b.where(is_off, zero, shifted)

    return shift


for _name, _is_left in (("left", True), ("right", False)):
    handles(*overloads(f"__{_name[0]}shift__"))(_shift(_is_left))
    _kinds = "Tensor Tensor_Scalar Scalar_Tensor"
    handles(*overloads(f"bitwise_{_name}_shift", kinds=_kinds))(_shift(_is_left))


@handles(*overloads("where", kinds="self ScalarSelf ScalarOther Scalar"))
def _where(call: Call, condition: Value, x: Operand, y: Operand) -> Value:
    return call.b.where(
        _as_bool(call, condition), call.value(x, call.dtype), call.value(y, call.dtype)
    )


@handles(*overloads("masked_fill"))
def _masked_fill(call: Call, x: Value, mask: Value, value: Operand) -> Value:
    return call.b.where(mask, call.value(value, call.dtype), x)
