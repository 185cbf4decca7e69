"""Rules that recognise activations written out: part of `canonicalize`."""

from math import pi, sqrt

from ..ir.builder import Builder
from ..ir.graph import Value
from .patterns import Any_, Numeral, OneOf, OpPattern, Pattern, pat
from .rewrite import Decline, rule, rules_among

x = Any_("x")
_GELU = sqrt(2 / pi)
_CUBIC = 0.044715
TOLERANCE = 1e-6  # models write these numbers with seven or more digits


@rule(pat.mul(x, pat.sigmoid(x)))
def silu(b: Builder, x: Value):
    """x * sigmoid(x)  ->  silu(x)"""
    return b.silu(x)


def _halved(function: Pattern) -> list[OpPattern]:
    """0.5 * x * (1 + function), in the orders in which it is written."""
    half, shifted = Numeral(value=0.5), pat.add(function, Numeral(value=1.0))
    return [
        pat.mul(pat.mul(x, half), shifted),
        pat.mul(pat.mul(x, shifted), half),
        pat.mul(x, pat.mul(shifted, half)),
    ]


_square = pat.mul(x, x)
_cube = OneOf(pat.mul(_square, x), pat.mul(x, _square))
_inside = OneOf(
    pat.mul(pat.add(x, pat.mul(_cube, Numeral("cubic"))), Numeral("root")),
    pat.mul(
        pat.mul(x, Numeral("root")),
        pat.add(pat.mul(pat.mul(x, Numeral("cubic")), x), Numeral(value=1.0)),
    ),
)


@rule(*_halved(pat.tanh(_inside)))
def gelu_tanh(b: Builder, x: Value, cubic: float, root: float):
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))  ->  gelu_tanh(x)"""
    if abs(cubic - _CUBIC) > TOLERANCE or abs(root - _GELU) > TOLERANCE:
        return Decline(f"the numbers are {root} and {cubic}: not those of gelu")
    return b.gelu_tanh(x)


@rule(*_halved(pat.erf(OneOf(pat.mul(x, Numeral("root")), pat.div(x, Numeral("divisor"))))))
def gelu(b: Builder, x: Value, root: float = 0.0, divisor: float = 0.0):
    """0.5 * x * (1 + erf(x / sqrt(2)))  ->  gelu(x)"""
    if abs((root or 1 / divisor) - 1 / sqrt(2)) > TOLERANCE:
        return Decline(f"erf of x * {root or 1 / divisor}: not that of gelu")
    return b.gelu(x)


ACTIVATION_RULES = rules_among(globals())
