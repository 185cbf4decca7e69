"""Special functions as formulas, computed in float64 whatever the dtype: none is on a hot path.

Within 1e-10 of the exact value, relative to it or to 1, whichever is larger; results for zeros,
poles, infinities and NaN are torch's.
"""

import math
from collections.abc import Callable

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import f64
from .formula import Term, computed


def special(b: Builder, name: str, *operands: Value) -> Value:
    """The function of FUNCTIONS of float values, broadcast. -> their dtype."""
    return computed(b, FUNCTIONS[name], operands, f64)


# ---- error functions -------------------------------------------------------------------------


def _scaled_tail(a: Term) -> Term:
    """exp(a^2) erfc(a) for a >= 1, by Cephes' ratios of polynomials (ndtr.c)."""
    near = a.horner(
        *(2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0),
        *(4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2),
        *(9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2),
    ) / a.horner(
        *(1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2),
        *(9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3),
        *(1.65666309194161350182e3, 5.57535340817727675546e2),
    )
    # the ratio of degrees 5 and 6 in 1 / a, so that it does not overflow
    z = 1.0 / a
    far = (
        z
        * z.horner(
            *(2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0),
            *(5.01905042251180477414e0, 1.27536670759978104416e0, 5.64189583547755073984e-1),
        )
        / z.horner(
            *(3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1),
            *(1.20489539808096656605e1, 9.39603524938001434673e0, 2.26052863220117276590e0),
            1.0,
        )
    )
    return (a < 8.0).where(near, far)


def erfc(x: Term) -> Term:
    """1 - erf(x); far from 0 its tail is computed by itself."""
    a = abs(x)
    tail = (a > 28.0).where(0.0, (-(a * a)).exp() * _scaled_tail(a))
    return (a < 1.0).where(1.0 - x.erf(), (x < 0.0).where(2.0 - tail, tail))


def erfcx(x: Term) -> Term:
    """exp(x^2) erfc(x)."""
    a = abs(x)
    growth = (a * a).exp()
    tail = _scaled_tail(a)
    return (a < 1.0).where(growth * (1.0 - x.erf()), (x < 0.0).where(2.0 * growth - tail, tail))


def erfinv(y: Term) -> Term:
    """x with erf(x) = y: Giles, "Approximating the erfinv function", 2011, and two Halley steps."""
    w = -((1.0 - y) * (1.0 + y)).log()
    near = (w - 2.5).horner(
        *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
        *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
    )
    far = (w.sqrt() - 3.0).horner(
        *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
        *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
    )
    x = (w < 5.0).where(near, far) * y
    for _ in range(2):
        step = (x.erf() - y) / (2 / math.sqrt(math.pi) * (-(x * x)).exp())
        x = x - step / (1.0 + x * step)
    return (abs(y) == 1.0).where(y * math.inf, x)


# ---- the gamma function and its derivatives --------------------------------------------------

_LANCZOS = (
    *(676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


def _sine_of_turn(x: Term) -> Term:
    """sin(pi x), exactly 0 for whole x."""
    whole = x.round()
    sine = ((x - whole) * math.pi).sin()
    is_odd = whole.apply("mod", whole, 2.0) == 1.0
    return is_odd.where(-sine, sine)


def lgamma(x: Term) -> Term:
    """log |gamma(x)|. Lanczos, "A precision approximation of the gamma function", 1964 (g = 7)."""
    is_left = x < 0.5
    z = is_left.where(1.0 - x, x) - 1.0
    total = 0.99999999999980993 + sum(
        (c / (z + float(k)) for k, c in enumerate(_LANCZOS[1:], 2)), _LANCZOS[0] / (z + 1.0)
    )
    t = z + 7.5
    right = 0.5 * math.log(2 * math.pi) + (z + 0.5) * t.log() - t + total.log()
    left = (math.pi / abs(_sine_of_turn(x))).log() - right
    return (abs(x) == math.inf).where(math.inf, is_left.where(left, right))


# B(2k) / 2k of Bernoulli's numbers
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(x: Term) -> Term:
    """The derivative of lgamma, by recurrence and its asymptotic series (Abramowitz 6.3.18)."""
    is_left = x < 0.0
    z = is_left.where(1.0 - x, x)
    # z + 10 or more for the series
    shift = sum((1.0 / (z + float(k)) for k in range(1, 10)), 1.0 / z)
    far = z + 10.0
    inverse = 1.0 / (far * far)
    series = inverse * inverse.horner(*reversed(_DIGAMMA))
    right = far.log() - 0.5 / far - series - shift
    fraction = x - x.round()
    left = right - math.pi * (fraction * math.pi).cos() / (fraction * math.pi).sin()
    at_pole = is_left & (x == x.floor())
    value = at_pole.where(math.nan, is_left.where(left, right))
    value = (x == math.inf).where(math.inf, value)
    return (x == 0.0).where(-1.0 / x, value)


# ---- modified Bessel functions ---------------------------------------------------------------


def _bessel_i(order: int, scaled: bool) -> Callable[[Term], Term]:
    """I(order, x), times exp(-|x|) where scaled (Abramowitz 9.6.10 and 9.7.1)."""
    powers = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(40)]
    inverse = _hankel(order, -1)

    def bessel(x: Term) -> Term:
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

    return bessel


def _hankel(order: int, sign: int) -> list[float]:
    """Coefficients of the asymptotic series in 1 / x, for x of 16 or more."""
    found = [1.0]
    for k in range(1, 24):
        found.append(sign * found[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return found


def _bessel_k(order: int, scaled: bool) -> Callable[[Term], Term]:
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

    def bessel(x: Term) -> Term:
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

    return bessel


def spherical_j0(x: Term) -> Term:
    """sin(x) / x, 1 at 0 and 0 at infinity."""
    value = (x == 0.0).where(1.0, x.sin() / x)
    return (abs(x) == math.inf).where(0.0, value)


FUNCTIONS: dict[str, Callable[..., Term]] = {
    **{f.__name__: f for f in (erfc, erfcx, erfinv, lgamma, digamma, spherical_j0)},
    **{f"i{n}{'e' * s}": _bessel_i(n, bool(s)) for n in (0, 1) for s in (0, 1)},
    **{f"k{n}{'e' * s}": _bessel_k(n, bool(s)) for n in (0, 1) for s in (0, 1)},
}
