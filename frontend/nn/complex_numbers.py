"""Functions of complex numbers, as formulas over their real and imaginary parts."""

import math
from collections.abc import Callable
from typing import NamedTuple

from .elementary import atan2, cosh, hypot, sinh, with_sign
from .formula import Term


class Complex(NamedTuple):
    """A complex number of a formula."""

    real: Term
    imag: Term


def add(x: Complex, y: Complex) -> Complex:
    """The sum."""
    return Complex(x.real + y.real, x.imag + y.imag)


def sub(x: Complex, y: Complex) -> Complex:
    """The difference."""
    return Complex(x.real - y.real, x.imag - y.imag)


def mul(x: Complex, y: Complex) -> Complex:
    """The product."""
    return Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def div(x: Complex, y: Complex) -> Complex:
    """The quotient, scaled by the larger part of y; by 0 each part is divided by itself."""
    scale = abs(y.real).maximum(abs(y.imag))
    a, b, c, d = (part / scale for part in (*x, *y))
    size, by_zero = c * c + d * d, scale == 0.0
    return Complex(
        by_zero.where(a, (a * c + b * d) / size), by_zero.where(b, (b * c - a * d) / size)
    )


def reciprocal(x: Complex) -> Complex:
    """1 / x."""
    one = x.real * 0.0 + 1.0
    return div(Complex(one, x.real * 0.0), x)


def magnitude(x: Complex) -> Term:
    """|x|."""
    return hypot(x.real, x.imag)


def angle(x: Complex) -> Term:
    """The argument of x, in [-pi, pi]."""
    return atan2(x.imag, x.real)


def exp(x: Complex) -> Complex:
    """e to the power x."""
    size = x.real.exp()
    is_real = x.imag == 0.0
    return Complex(size * x.imag.cos(), is_real.where(x.imag, size * x.imag.sin()))


def log(x: Complex) -> Complex:
    """The principal logarithm."""
    return Complex(magnitude(x).log(), angle(x))


def sqrt(x: Complex) -> Complex:
    """The principal root: both parts from the larger of them, without cancellation."""
    root = (0.5 * (magnitude(x) + abs(x.real))).sqrt()
    other = (root == 0.0).where(0.0, 0.5 * abs(x.imag) / root)
    is_right = x.real >= 0.0
    return Complex(is_right.where(root, other), with_sign(is_right.where(other, root), x.imag))


def rsqrt(x: Complex) -> Complex:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


def sgn(x: Complex) -> Complex:
    """x / |x|, 0 for 0."""
    size = magnitude(x)
    safe = (size == 0.0).where(1.0, size)
    return Complex(x.real / safe, x.imag / safe)


def sin(x: Complex) -> Complex:
    """Sine."""
    return Complex(x.real.sin() * cosh(x.imag), x.real.cos() * sinh(x.imag))


def cos(x: Complex) -> Complex:
    """Cosine."""
    return Complex(x.real.cos() * cosh(x.imag), -(x.real.sin() * sinh(x.imag)))


def sinh_(x: Complex) -> Complex:
    """Hyperbolic sine."""
    return Complex(sinh(x.real) * x.imag.cos(), cosh(x.real) * x.imag.sin())


def cosh_(x: Complex) -> Complex:
    """Hyperbolic cosine."""
    return Complex(cosh(x.real) * x.imag.cos(), sinh(x.real) * x.imag.sin())


def power(x: Complex, y: Complex) -> Complex:
    """exp(y log x); 0 to the power 0 is 1, and to any other 0."""
    found = exp(mul(y, log(x)))
    of_zero = (x.real == 0.0) & (x.imag == 0.0)
    is_one = (y.real == 0.0) & (y.imag == 0.0)
    one = is_one.where(1.0, 0.0)
    return Complex(of_zero.where(one, found.real), of_zero.where(0.0, found.imag))


def polar(size: Term, turn: Term) -> Complex:
    """size * exp(i turn)."""
    return Complex(size * turn.cos(), size * turn.sin())


# names of torch's -> what it is; of one or two complex numbers
UNARY: dict[str, Callable[[Complex], Complex | Term]] = {
    "abs": magnitude,
    "angle": angle,
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "reciprocal": reciprocal,
    "sgn": sgn,
    "sin": sin,
    "cos": cos,
    "sinh": sinh_,
    "cosh": cosh_,
    "square": lambda x: mul(x, x),
    "isnan": lambda x: (x.real != x.real) | (x.imag != x.imag),
    "isinf": lambda x: (abs(x.real) == math.inf) | (abs(x.imag) == math.inf),
    "isfinite": lambda x: (abs(x.real) < math.inf) & (abs(x.imag) < math.inf),
    "logical_not": lambda x: (x.real == 0.0) & (x.imag == 0.0),
}
BINARY: dict[str, Callable[[Complex, Complex], Complex | Term]] = {
    "mul": mul,
    "div": div,
    "pow": power,
    "eq": lambda x, y: (x.real == y.real) & (x.imag == y.imag),
    "ne": lambda x, y: (x.real != y.real) | (x.imag != y.imag),
}
