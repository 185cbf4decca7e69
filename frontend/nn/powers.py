"""Powers of integers, by squaring; what leaves the dtype wraps around, as in C."""

from ...ir.builder import Builder
from ...ir.graph import Value
from .scan import repeated


def whole_power(b: Builder, base: Value, exponent: int) -> Value:
    """The product of 1 or more equal factors."""
    half = base if exponent < 4 else whole_power(b, base, exponent // 2)
    square = b.mul(half, half)
    return b.mul(square, base) if exponent % 2 else square


def integer_power(b: Builder, base: Value, exponent: Value) -> Value:
    """base ** exponent of integers of one dtype, broadcast.

    Below exponent 0 a power is rounded towards zero: not 0 for 1 and -1 alone; 0 to that is 0.
    """
    dtype = base.dtype
    one, zero = b.constant(1, dtype), b.constant(0, dtype)
    nothing = b.mul(b.add(base, exponent), zero)  # of the common shape
    flat = [
        b.reshape(b.add(v, nothing), shape=(nothing.type.numel,)) for v in (one, base, exponent)
    ]

    def goes_on(inner: Builder, product: Value, base: Value, exponent: Value) -> tuple[Value]:
        return (inner.any(inner.gt(exponent, inner.constant(0, dtype)), axes=(0,)),)

    def step(inner: Builder, product: Value, base: Value, exponent: Value) -> tuple[Value, ...]:
        factor = inner.where(_is_odd(inner, exponent), base, inner.constant(1, dtype))
        halved = inner.floordiv(exponent, inner.constant(2, dtype))
        is_left = inner.gt(exponent, inner.constant(0, dtype))
        product = inner.where(is_left, inner.mul(product, factor), product)
        return product, inner.mul(base, base), halved

    whole = b.reshape(repeated(b, goes_on, step, flat)[0], shape=nothing.shape)
    if dtype.kind == "uint":
        return whole
    is_unit = b.or_(b.eq(base, one), b.and_(b.eq(base, b.neg(one)), b.not_(_is_odd(b, exponent))))
    is_turned = b.and_(b.eq(base, b.neg(one)), _is_odd(b, exponent))
    below = b.where(is_unit, one, b.where(is_turned, b.neg(one), zero))
    return b.where(b.lt(exponent, zero), below, whole)


def _is_odd(b: Builder, x: Value) -> Value:
    return b.eq(b.mod(x, b.constant(2, x.dtype)), b.constant(1, x.dtype))
