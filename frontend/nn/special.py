"""Special functions as formulas, computed in float64 whatever the dtype: none is on a hot path.

Within 1e-10 of the exact value, relative to it or to 1, whichever is larger; results for zeros,
poles, infinities and NaN are torch's.
"""

import math
from collections.abc import Callable

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import f32, f64
from . import bessel
from .formula import Term, computed
from .scan import repeated


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


def trigamma(x: Term) -> Term:
    """The derivative of digamma, as torch has it: at poles as large as rounding leaves it."""
    is_left = x < 0.5
    sine = (x * math.pi).sin()
    z = is_left.where(1.0 - x, x)
    shift = sum((1.0 / ((z + float(k)) * (z + float(k))) for k in range(1, 6)), 1.0 / (z * z))
    far = z + 6.0
    inverse = 1.0 / (far * far)
    series = inverse * inverse.horner(1 / 42, -1 / 30, 1 / 6)
    right = shift + (1.0 + 0.5 / far + series) / far
    return is_left.where(math.pi**2 / (sine * sine) - right, right)


# the divisors of Euler-Maclaurin's terms, (2k)! / B(2k): Cephes, zeta.c
_ZETA = (
    *(12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9),
    *(7.47242496e10, -2.950130727918164224e12, 1.1646782814350067249e14),
    *(-4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18),
)


def zeta(b: Builder, s: Value, q: Value) -> Value:
    """Hurwitz' zeta function, sum over k of (q + k)^-s: some terms, then Euler-Maclaurin's formula.

    As Cephes has it, below q = 0 too, where it takes a term for each step up to 9.
    """
    return computed(b, lambda s, q: _zeta(b, s, q), (s, q), f64)


def polygamma(b: Builder, order: int, x: Value) -> Value:
    """The derivative of digamma of this order, 0 being digamma itself."""
    if order < 2:
        return computed(b, trigamma, (x,), f32) if order else special(b, "digamma", x)
    factor = math.factorial(order) * (1.0 if order % 2 else -1.0)
    s = Term(b, b.constant(order + 1.0, f64), f64)
    return computed(b, lambda x: factor * _zeta(b, s, x), (x,), f64)


def _zeta(b: Builder, s: Term, q: Term) -> Term:
    is_left = q <= 0.0
    is_whole, is_one, is_below = is_left & (q == q.floor()), s == 1.0, s < 1.0
    is_none = is_left & (s != s.floor())
    start = is_whole.where(1.0, q) + 0.0 * s
    s = s + 0.0 * start
    powers = [(start + float(k)).pow(-s) for k in range(10)]
    total = sum(powers[1:], powers[0])
    flat = [b.reshape(v.value, shape=(v.value.type.numel,)) for v in (start + 9.0, total, s)]

    def goes_on(inner: Builder, a: Value, total: Value, s: Value) -> tuple[Value]:
        return (inner.any(inner.le(a, inner.constant(9.0, f64)), axes=(0,)),)

    def step(inner: Builder, *values: Value) -> tuple[Value, Value]:
        a, total, s = (Term(inner, v, f64) for v in values)
        more, following = a <= 9.0, a + 1.0
        total = more.where(total + following.pow(-s), total)
        return more.where(following, a).value, total.value

    found = repeated(b, goes_on, step, flat[:2], flat[2:])
    a, total = (Term(b, b.reshape(v, shape=s.value.shape), f64) for v in found)
    last = a.pow(-s)
    tail = last * a / (s - 1.0) - 0.5 * last
    factor, power = s, last / a
    for k, divisor in enumerate(_ZETA):
        tail = tail + factor * power / divisor
        factor = factor * (s + (2.0 * k + 1.0)) * (s + (2.0 * k + 2.0))
        power = power / (a * a)
    # where the last term adds nothing, neither does the rest, which may overflow
    is_done = abs(last) < 1e-16 * abs(total)
    value = is_done.where(total, total + tail)
    value = is_whole.where(math.inf, is_none.where(math.nan, value))
    return is_one.where(math.inf, is_below.where(math.nan, value))


def ndtri(p: Term) -> Term:
    """x with P(X <= x) = p, X normally distributed: Abramowitz 26.2.23, and three Halley steps."""
    tail = p.minimum(1.0 - p)
    t = (-2.0 * tail.log()).sqrt()
    z = t - t.horner(0.010328, 0.802853, 2.515517) / t.horner(0.001308, 0.189269, 1.432788, 1.0)
    for _ in range(3):
        # over the density, so that neither is 0
        above = 0.5 * erfcx(z * math.sqrt(0.5)) - (tail.log() + 0.5 * z * z).exp()
        step = math.sqrt(2 * math.pi) * above
        z = z + step / (1.0 - 0.5 * z * step)
    z = (tail == 0.0).where(math.inf, z)
    return (tail < 0.0).where(math.nan, (p < 0.5).where(-z, z))


FUNCTIONS: dict[str, Callable[..., Term]] = {
    **{f.__name__: f for f in (erfc, erfcx, erfinv, lgamma, digamma, ndtri)},
    **bessel.FUNCTIONS,
}
