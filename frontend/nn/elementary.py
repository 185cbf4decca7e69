"""Elementary functions that are no ops of the IR, as formulas of those that are.

Each is within 4 units in the last place of the exact value, computed in float32 or wider, with
torch's and IEEE's results for zeros, infinities and NaN.
"""

import math
from collections.abc import Callable

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import f32
from .formula import Term, computed

_LOG2 = math.log(2)


def elementary(b: Builder, name: str, *operands: Value) -> Value:
    """The function of FUNCTIONS of float values, broadcast. -> their dtype."""
    return computed(b, FUNCTIONS[name], operands, f32)


def is_negative(x: Term) -> Term:
    """Whether the sign of x is set: also that of -0. NaN has none here."""
    return (x < 0.0) | ((x == 0.0) & (1.0 / x < 0.0))


def with_sign(size: Term, x: Term) -> Term:
    """Size, which is 0 or more, with the sign of x."""
    return is_negative(x).where(-size, size)


def atan(x: Term) -> Term:
    """Cephes, atan.c (Moshier, "Methods and programs for mathematical functions", 1989)."""
    a = abs(x)
    is_far, is_near = a > 2.414213562373095, a <= 0.66
    t = is_far.where(-1.0 / a, is_near.where(a, (a - 1.0) / (a + 1.0)))
    base = is_far.where(math.pi / 2, is_near.where(0.0, math.pi / 4))
    z = t * t
    above = z.horner(
        *(-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1),
        *(-1.228866684490136173410e2, -6.485021904942025371773e1),
    )
    below = z.horner(
        *(1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2),
        *(4.853903996359136964868e2, 1.945506571482613964425e2),
    )
    return with_sign(base + (t + t * (z * above / below)), x)


def atan2(y: Term, x: Term) -> Term:
    """The angle of the point (x, y), in [-pi, pi]."""
    a, c = abs(x), abs(y)
    large, small = a.maximum(c), a.minimum(c)
    ratio = (large == 0.0).where(0.0, (small == large).where(1.0, small / large))
    angle = atan(ratio)
    angle = (c > a).where(math.pi / 2 - angle, angle)
    return with_sign(is_negative(x).where(math.pi - angle, angle), y)


def asin(x: Term) -> Term:
    """atan(x / sqrt(1 - x^2))."""
    return atan(x / ((1.0 - x) * (1.0 + x)).sqrt())


def acos(x: Term) -> Term:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    return 2.0 * atan(((1.0 - x) / (1.0 + x)).sqrt())


def sinh(x: Term) -> Term:
    """(u + u / (u + 1)) / 2, u = exp(|x|) - 1; of what is far, half of exp(|x| / 2) squared."""
    a = abs(x)
    u, half = a.expm1(), (0.5 * a).exp()
    return with_sign((a > 20.0).where(0.5 * half * half, 0.5 * (u + u / (u + 1.0))), x)


def cosh(x: Term) -> Term:
    """(e + 1 / e) / 2, e = exp(|x|) as the square of exp(|x| / 2), which does not overflow."""
    half = (0.5 * abs(x)).exp()
    return 0.5 * half * half + 0.5 / half / half


def asinh(x: Term) -> Term:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))), a = |x|; of what is far log(2 a)."""
    a = abs(x)
    square = a * a
    near = (a + square / (1.0 + (1.0 + square).sqrt())).log1p()
    return with_sign((a > 1e9).where(a.log() + _LOG2, near), x)


def acosh(x: Term) -> Term:
    """log1p(t + sqrt(2 t + t^2)), t = x - 1; of what is far log(2 x)."""
    t = x - 1.0
    near = (t + (2.0 * t + t * t).sqrt()).log1p()
    return (x < 1.0).where(math.nan, (x > 1e9).where(x.log() + _LOG2, near))


def atanh(x: Term) -> Term:
    """log1p(2 a / (1 - a)) / 2, a = |x|."""
    a = abs(x)
    return with_sign(0.5 * (2.0 * a / (1.0 - a)).log1p(), x)


def hypot(x: Term, y: Term) -> Term:
    """sqrt(x^2 + y^2) without overflow; infinite where x or y is, even beside NaN."""
    a, c = abs(x), abs(y)
    large, small = a.maximum(c), a.minimum(c)
    ratio = (large == 0.0).where(0.0, small / large)
    far = (a == math.inf) | (c == math.inf)
    return far.where(math.inf, large * (1.0 + ratio * ratio).sqrt())


FUNCTIONS: dict[str, Callable[..., Term]] = {
    f.__name__: f for f in (atan, atan2, asin, acos, sinh, cosh, asinh, acosh, atanh, hypot)
}
