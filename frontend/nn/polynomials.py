"""Orthogonal polynomials whose degree is a value, in float64.

Hermite's, Laguerre's and Legendre's come from their recurrences, in a loop up to the largest degree
(Abramowitz 22.7). Chebyshev's of four kinds come from angles: with x = cos t they are cos(n t),
sin((n + 1) t) / sin t, and of half angles; beyond [-1, 1] t is imaginary, and the hyperbolic
functions take the place of the circular ones.
"""

from collections.abc import Callable
from functools import partial

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import f64
from .elementary import acos, acosh, cosh, sinh
from .formula import Term, computed
from .scan import repeated


def chebyshev(b: Builder, kind: str, x: Value, degree: Value, *, shifted: bool = False) -> Value:
    """The polynomial of `kind` (t, u, v, w) in x, in 2 x - 1 where shifted; 0 below degree 0."""
    kinds = {"t": _t, "u": _u, "v": _v, "w": _w}
    return computed(b, lambda x, n: _of(kinds[kind], x, n, shifted), (x, degree), f64)


def _of(kind: Callable[..., Term], x: Term, n: Term, shifted: bool) -> Term:
    x, n = (2.0 * x - 1.0 if shifted else x), n.trunc()
    size = abs(x)
    turn, growth = acos(x), acosh(size)
    is_odd = n - 2.0 * (0.5 * n).floor() == 1.0
    sign = ((x < 0.0) & is_odd).where(-1.0, 1.0)
    value = kind(n, x, turn, growth, size, sign)
    return (n < 0.0).where(0.0, value)


def _t(n: Term, x: Term, turn: Term, growth: Term, size: Term, sign: Term) -> Term:
    return (size <= 1.0).where((n * turn).cos(), sign * cosh(n * growth))


def _u(n: Term, x: Term, turn: Term, growth: Term, size: Term, sign: Term) -> Term:
    inside = ((n + 1.0) * turn).sin() / turn.sin()
    outside = sign * sinh((n + 1.0) * growth) / sinh(growth)
    return (size == 1.0).where(sign * (n + 1.0), (size < 1.0).where(inside, outside))


def _v(n: Term, x: Term, turn: Term, growth: Term, size: Term, sign: Term) -> Term:
    return _halves(n, turn, growth, size, sign, x > 0.0, "cos")


def _w(n: Term, x: Term, turn: Term, growth: Term, size: Term, sign: Term) -> Term:
    return _halves(n, turn, growth, size, sign, x < 0.0, "sin")


def _halves(
    n: Term,
    turn: Term,
    growth: Term,
    size: Term,
    sign: Term,
    is_even: Term,
    circular: str,
) -> Term:
    """Ratios of (n + 1/2) angles to half angles; `is_even` where cosh takes circular's place."""
    middle = n + 0.5
    inside = middle.apply(circular, middle * turn) / middle.apply(circular, 0.5 * turn)
    even = cosh(middle * growth) / cosh(0.5 * growth)
    odd = sinh(middle * growth) / sinh(0.5 * growth)
    at_one = is_even.where(1.0, 2.0 * n + 1.0)
    outside = is_even.where(even, odd)
    return (size == 1.0).where(sign * at_one, (size < 1.0).where(inside, sign * outside))


# the polynomial of degree k + 1 from x, k, that of degree k, and that of degree k - 1
_Next = Callable[[Term, Term, Term, Term], Term]
_RECURRENCES: dict[str, _Next] = {
    "hermite_h": lambda x, k, p, q: 2.0 * (x * p - k * q),
    "hermite_he": lambda x, k, p, q: x * p - k * q,
    "laguerre_l": lambda x, k, p, q: ((2.0 * k + 1.0 - x) * p - k * q) / (k + 1.0),
    "legendre_p": lambda x, k, p, q: ((2.0 * k + 1.0) * x * p - k * q) / (k + 1.0),
}


def recurrent(b: Builder, name: str, x: Value, degree: Value) -> Value:
    """The polynomial `name` of _RECURRENCES in x, broadcast; 0 below degree 0."""
    return computed(b, partial(_recurrent, b, _RECURRENCES[name]), (x, degree), f64)


def _recurrent(b: Builder, following: _Next, x: Term, n: Term) -> Term:
    n = (n + 0.0 * x).trunc()
    x = x + 0.0 * n
    zero = 0.0 * n
    flat = [b.reshape(v.value, shape=(v.value.type.numel,)) for v in (zero, zero + 1.0, zero, x, n)]

    def goes_on(inner: Builder, q: Value, p: Value, k: Value, x: Value, n: Value) -> tuple[Value]:
        return (inner.any(inner.lt(k, n), axes=(0,)),)

    def step(inner: Builder, *values: Value) -> tuple[Value, ...]:
        q, p, k, x, n = (Term(inner, v, f64) for v in values)
        more = k < n
        new = (more.where(p, q), more.where(following(x, k, p, q), p), k + 1.0)
        return tuple(v.value for v in new)

    found = repeated(b, goes_on, step, flat[:3], flat[3:])[1]
    value = Term(b, b.reshape(found, shape=n.value.shape), f64)
    return (n < 0.0).where(0.0, value)
