"""Bessel functions of order 0 and 1 as formulas: series near 0, asymptotic series far from it."""

import math
from collections.abc import Callable

from .formula import Term


def bessel(kind: str, order: int) -> Callable[[Term], Term]:
    """J(order, x) or Y(order, x) for order 0 and 1; Y is NaN below 0 and -infinite at 0.

    Up to 14 their series (Abramowitz 9.1.10, 9.1.11), from there on Hankel's (9.2.5, 9.2.6).
    """
    gamma = 0.57721566490153286
    signed = [(-1) ** k / (math.factorial(k) * math.factorial(k + order)) for k in range(40)]
    harmonic = [sum(1 / j for j in range(1, k + 1)) for k in range(41)]
    sums = [c * (harmonic[k] + harmonic[k + order] - 2 * gamma) for k, c in enumerate(signed)]
    terms = [(-1) ** (k // 2) * c for k, c in enumerate(_hankel(order, 1))]

    def function(x: Term) -> Term:
        a = abs(x)
        half, inverse = 0.5 * a, 1.0 / a
        series, rest = ((half * half).horner(*reversed(c)) for c in (signed, sums))
        series, rest = (half * series, half * rest) if order else (series, rest)
        even, odd = ((inverse * inverse).horner(*reversed(terms[i::2])) for i in (0, 1))
        odd, turn = odd * inverse, a - math.pi * (0.5 * order + 0.25)
        size = (2.0 / math.pi * inverse).sqrt()
        if kind == "j":
            near, far = series, even * turn.cos() - odd * turn.sin()
        else:
            near = (2.0 * half.log() * series - rest) / math.pi
            near = near - 2.0 / math.pi * inverse if order else near
            far = even * turn.sin() + odd * turn.cos()
        value = (a < 14.0).where(near, size * far)
        if kind == "j":
            return (x < 0.0).where(-value, value) if order else value
        value = (x == 0.0).where(-math.inf, value)
        return (x < 0.0).where(math.nan, value)

    return function


def bessel_i(order: int, scaled: bool) -> Callable[[Term], Term]:
    """I(order, x), times exp(-|x|) where scaled (Abramowitz 9.6.10 and 9.7.1)."""
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(40)]
    inverse = _hankel(order, -1)

    def function(x: Term) -> Term:
        a = abs(x)
        half = 0.5 * a
        near = (half * half).horner(*reversed(powers))
        near = near * half if order else near
        far = (1.0 / a).horner(*reversed(inverse)) / (2 * math.pi * a).sqrt()
        half = half.exp()
        if scaled:
            near = near / half / half
        else:
            far = far * half * half
        size = (a < 16.0).where(near, far)
        return (x < 0.0).where(-size, size) if order else size

    return function


def _hankel(order: int, sign: int) -> list[float]:
    """Coefficients of the asymptotic series in 1 / x, for x of 16 or more."""
    found = [1.0]
    for k in range(1, 24):
        found.append(sign * found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def bessel_k(order: int, scaled: bool) -> Callable[[Term], Term]:
    """K(order, x) for order 0 and 1, times exp(x) where scaled; NaN below 0, infinite at 0.

    Up to 1 its series (Abramowitz 9.6.11 and 9.6.13), from 16 on the asymptotic one. Between them
    the integral over t of exp(-x (cosh t - 1)) cosh(order t), by the trapezoidal rule, which in
    steps of 1 / 6 is exact to 1e-15 (Trefethen and Weideman, "The exponentially convergent
    trapezoidal rule", 2014).
    """
    gamma = 0.57721566490153286
    harmonic = [sum(1 / j for j in range(1, k + 1)) for k in range(16)]
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(14)]
    if order == 0:
        sums = [power * (harmonic[k] - gamma) for k, power in enumerate(powers)]
    else:
        sums = [p * (harmonic[k] + harmonic[k + 1] - 2 * gamma) for k, p in enumerate(powers)]

    def function(x: Term) -> Term:
        half = 0.5 * x
        square = half * half
        series, rest = (square.horner(*reversed(c)) for c in (powers, sums))
        log = half.log()
        near = rest - log * series if order == 0 else 1.0 / x + half * (log * series - 0.5 * rest)
        middle = x * 0.0 + 1 / 12
        for t in (k / 6 for k in range(1, 28)):
            middle = middle + math.cosh(order * t) / 6 * (x * (1.0 - math.cosh(t))).exp()
        inverse = 1.0 / x
        far = inverse.horner(*reversed(_hankel(order, 1))) * (math.pi / 2 * inverse).sqrt()
        far = (x < 16.0).where(middle, far)
        decay = (-x).exp()
        value = (x <= 1.0).where(near / decay if scaled else near, far if scaled else far * decay)
        return (x == 0.0).where(math.inf, (x == math.inf).where(0.0, value))

    return function


def spherical_j0(x: Term) -> Term:
    """sin(x) / x, 1 at 0 and 0 at infinity."""
    value = (x == 0.0).where(1.0, x.sin() / x)
    return (abs(x) == math.inf).where(0.0, value)


FUNCTIONS: dict[str, Callable[[Term], Term]] = {
    **{f"{kind}{n}": bessel(kind, n) for kind in "jy" for n in (0, 1)},
    **{f"i{n}{'e' * s}": bessel_i(n, bool(s)) for n in (0, 1) for s in (0, 1)},
    **{f"k{n}{'e' * s}": bessel_k(n, bool(s)) for n in (0, 1) for s in (0, 1)},
    "spherical_j0": spherical_j0,
}
