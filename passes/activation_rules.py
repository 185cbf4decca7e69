"""Rules that recognise activations written out: part of `canonicalize`."""

from math import pi, sqrt

from ..ir.builder import Builder
from ..ir.graph import Value
from .patterns import Any_, number, one_of, pat
from .rewrite import Decline, rule, rules_among

x = Any_("x")
_GELU = sqrt(2 / pi)
_CUBIC = 0.044715
TOLERANCE = 1e-6  # models write these numbers with seven or more digits


@rule(pat.mul(x, pat.sigmoid(x)))
def silu(b: Builder, x: Value):
    """x * sigmoid(x)  ->  silu(x)"""
    return b.silu(x)


_square = pat.mul(x, x)
_cube = one_of(pat.mul(_square, x), pat.mul(x, _square))
_inside = one_of(
    pat.mul(pat.add(x, pat.mul(_cube, number("cubic"))), number("root")),
    pat.mul(
        pat.mul(x, number("root")),
        pat.add(pat.mul(pat.mul(x, number("cubic")), x), number(value=1.0)),
    ),
)
_half = number(value=0.5)
_shifted = pat.add(pat.tanh(_inside), number(value=1.0))


@rule(
    pat.mul(pat.mul(x, _half), _shifted),
    pat.mul(pat.mul(x, _shifted), _half),
    pat.mul(x, pat.mul(_shifted, _half)),
)
def gelu_tanh(b: Builder, x: Value, cubic: float, root: float):
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))  ->  gelu_tanh(x)"""
    if abs(cubic - _CUBIC) > TOLERANCE or abs(root - _GELU) > TOLERANCE:
        return Decline(f"the numbers are {root} and {cubic}: not those of gelu")
    return b.gelu_tanh(x)


@rule(
    pat.mul(pat.mul(x, _half), pat.add(pat.erf(pat.mul(x, number("root"))), number(value=1.0))),
    pat.mul(pat.mul(x, pat.add(pat.erf(pat.mul(x, number("root"))), number(value=1.0))), _half),
    pat.mul(pat.mul(x, _half), pat.add(pat.erf(pat.div(x, number("divisor"))), number(value=1.0))),
    pat.mul(pat.mul(x, pat.add(pat.erf(pat.div(x, number("divisor"))), number(value=1.0))), _half),
)
def gelu(b: Builder, x: Value, root: float = 0.0, divisor: float = 0.0):
    """0.5 * x * (1 + erf(x / sqrt(2)))  ->  gelu(x)"""
    if abs((root or 1 / divisor) - 1 / sqrt(2)) > TOLERANCE:
        return Decline(f"erf of x * {root or 1 / divisor}: not that of gelu")
    return b.gelu(x)


ACTIVATION_RULES = rules_among(globals())
