"""Shifts of the bits of integers."""

from ...ir.builder import Builder
from ...ir.graph import Value


def shift(b: Builder, x: Value, by: Value, *, is_left: bool) -> Value:
    """X times, or over, 2 ** by; both are of one integer dtype, and broadcast.

    Unless `by` is in [0, bits) nothing is left of x but, to the right, its sign.
    """
    dtype = x.dtype

    def number(value: int) -> Value:
        return b.constant(value, dtype)

    top, zero = dtype.bits - 1, number(0)
    is_off = b.gt(by, number(top))
    if dtype.kind == "int":
        is_off = b.or_(b.lt(by, zero), is_off)
    by = b.where(is_off, number(top), by)
    # by 1, 2, 4, ..., whichever are bits of `by`: constants, none of them beyond the dtype
    for step in (1 << bit for bit in range(top.bit_length())):
        moved = (b.mul if is_left else b.floordiv)(x, number(2**step))
        x = b.where(b.ne(b.and_(by, number(step)), zero), moved, x)
    leaves_sign = not is_left and dtype.kind == "int"
    return x if leaves_sign else b.where(is_off, zero, x)
