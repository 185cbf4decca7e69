"""Quotients and remainders that are rounded towards zero, as C has them."""

from ...ir.builder import Builder
from ...ir.graph import Value


def truncated_div(b: Builder, x: Value, y: Value) -> Value:
    """x / y of integers of one dtype, rounded towards zero."""
    quotient = b.floordiv(x, y)
    return b.where(_is_below(b, x, y), b.add(quotient, b.constant(1, x.dtype)), quotient)


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """What is left of x, with the sign of x; both are of one dtype, integers or floats."""
    if x.dtype.is_float:
        rest = b.mod(b.abs(x), b.abs(y))
        signed = b.where(b.lt(x, b.constant(0.0, x.dtype)), b.neg(rest), rest)
        return with_sign_of_zero(b, signed, x)
    rest = b.mod(x, y)
    return b.where(_is_below(b, x, y), b.sub(rest, y), rest)


def with_sign_of_zero(b: Builder, rest: Value, x: Value) -> Value:
    """A remainder of floats whose zero has the sign of x."""
    zero = b.constant(0.0, x.dtype)
    return b.where(b.eq(rest, zero), b.mul(x, zero), rest)


def _is_below(b: Builder, x: Value, y: Value) -> Value:
    """Whether floordiv is one below what rounding towards zero gives: x / y is negative, not whole.

    There mod is one divisor away from the remainder that has the sign of x. No magnitude is taken:
    the least integer has none.
    """
    zero = b.constant(0, x.dtype)
    is_negative = b.xor(b.lt(x, zero), b.lt(y, zero))
    return b.and_(is_negative, b.ne(b.mod(x, y), zero))
