"""Discrete Fourier transforms as products with matrices of sines and cosines.

X[k] = sum over j of x[j] exp(-2 pi i j k / n), over the last axis; complex numbers are pairs of
real and imaginary parts. A size that has factors is taken apart along them (Cooley and Tukey, "An
algorithm for the machine calculation of complex Fourier series", 1965), so the work is n times the
sum of the factors. Sums are those of matrix products; angles are exact before cosine.
"""

import math

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import DType, f64, i64
from ..declined import Declined

Parts = tuple[Value, Value | None]  # real and imaginary; None where all of these are 0
_DIRECT = 64  # a size up to which one product is made
_MOST = 4096  # the largest factor, whose matrix has its square of elements


def transform(b: Builder, x: Parts, *, inverse: bool = False) -> tuple[Value, Value]:
    """The transform along the last axis of [..., n], n known; `inverse` has no factor 1 / n.

    Declined for a size with a prime factor above 4096.
    """
    real, imaginary = x
    size = real.shape[-1]
    if not isinstance(size, int):
        raise Declined(f"a Fourier transform along an axis of {size}: must be a known number")
    if size == 1:
        return real, _or_zero(b, real, imaginary)
    factor = _factor(size)
    if factor == size:
        return _product(b, x, size, inverse)
    # j = rest * j1 + j2, k = k1 + factor * k2: over j1, a turn by j2 * k1, then over j2
    rest, kept = size // factor, real.shape[:-1]

    def columns(v: Value) -> Value:
        return _swapped(b, b.reshape(v, shape=(*kept, factor, rest)))

    parts = columns(real), None if imaginary is None else columns(imaginary)
    real, imaginary = transform(b, parts, inverse=inverse)
    cosine, sine = _circle(b, rest, factor, size, inverse, real.dtype)
    real, imaginary = (
        b.sub(b.mul(real, cosine), b.mul(imaginary, sine)),
        b.add(b.mul(real, sine), b.mul(imaginary, cosine)),
    )
    done = transform(b, (_swapped(b, real), _swapped(b, imaginary)), inverse=inverse)
    real, imaginary = (b.reshape(_swapped(b, v), shape=(*kept, size)) for v in done)
    return real, imaginary


def hermitian(b: Builder, x: tuple[Value, Value], size: int) -> tuple[Value, Value]:
    """All `size` elements of a transform of real numbers, of whose halves one is given.

    x: [..., size // 2 + 1]; the others are the conjugates of these, from the end. What would have
    to be real is taken for it: imaginary parts at 0 and the middle do not count.
    """
    count = size // 2 + 1
    others = size - count
    real, imaginary = x
    axis = real.type.rank - 1
    twice = b.iota(length=count, step=2, dtype=i64)
    is_real = b.eq(b.mod(twice, b.constant(size, i64)), b.constant(0, i64))
    imaginary = b.where(is_real, b.constant(0.0, imaginary.dtype), imaginary)
    if not others:
        return real, imaginary
    mirror = b.iota(length=others, start=others, step=-1, dtype=i64)
    return (
        b.concat(real, b.gather(real, mirror, axis=axis), axis=axis),
        b.concat(imaginary, b.neg(b.gather(imaginary, mirror, axis=axis)), axis=axis),
    )


def _product(b: Builder, x: Parts, size: int, inverse: bool) -> tuple[Value, Value]:
    real, imaginary = x
    cosine, sine = _circle(b, size, size, size, inverse, real.dtype)
    left, right = b.matmul(real, cosine), b.matmul(real, sine)
    if imaginary is None:
        return left, right
    return (
        b.sub(left, b.matmul(imaginary, sine)),
        b.add(right, b.matmul(imaginary, cosine)),
    )


def _circle(
    b: Builder, rows: int, columns: int, size: int, inverse: bool, dtype: DType
) -> tuple[Value, Value]:
    """Cosine and sine of -2 pi j k / size for each row j and column k; 2 pi where inverse."""
    row = b.reshape(b.iota(length=rows, dtype=i64), shape=(rows, 1))
    place = b.mod(b.mul(row, b.iota(length=columns, dtype=i64)), b.constant(size, i64))
    turn = (2 if inverse else -2) * math.pi / size
    angle = b.mul(b.cast(place, dtype=f64), b.constant(turn, f64))
    return b.cast(b.cos(angle), dtype=dtype), b.cast(b.sin(angle), dtype=dtype)


def _swapped(b: Builder, x: Value) -> Value:
    axes = x.type.rank - 2
    return b.transpose(x, perm=(*range(axes), axes + 1, axes))


def _factor(size: int) -> int:
    """The largest factor up to the square root, or the size itself where it is not taken apart."""
    if size <= _DIRECT:
        return size
    found = next((f for f in range(math.isqrt(size), 1, -1) if size % f == 0), size)
    if found == size > _MOST:
        raise Declined(f"a Fourier transform of size {size}, which has no factors")
    return found


def _or_zero(b: Builder, like: Value, imaginary: Value | None) -> Value:
    if imaginary is not None:
        return imaginary
    return b.full(value=0.0, shape=like.shape, dtype=like.dtype)
