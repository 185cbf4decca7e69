"""Numbers computed from sizes or read from tensors, as values without axes.

Fractions are float64, whole numbers int64; whole numbers that may be sizes never come here: they
are dims.
"""

from collections.abc import Callable

import torch

from ...ir import types
from ...ir.graph import Value
from ..importer import HANDLERS, Call, Handler, Scalar
from ..nn.powers import integer_power, whole_power

Number = Value | Scalar


def number(call: Call, x: Number) -> Value:
    """A Python number, a dim or another value as the dtype of what is computed from it."""
    is_whole = isinstance(call.expected, torch.SymInt)
    return call.value(x, types.i64 if is_whole else types.f64)


def _apply(op: str) -> Handler:
    return lambda call, *numbers: getattr(call.b, op)(*(number(call, x) for x in numbers))


def _pow(call: Call, x: Number, y: Number) -> Value:
    base = number(call, x)
    if base.dtype.is_float:
        return call.b.pow(base, number(call, y))
    if isinstance(y, int) and y > 1:
        return whole_power(call.b, base, y)
    return integer_power(call.b, base, number(call, y))


# names of the Python functions that torch leaves in a graph for symbolic numbers
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _apply(name) for name in ("add", "sub", "mul", "neg", "floordiv", "mod")},
    "pow": _pow,
    "truediv": _apply("div"),
    "sym_float": number,
    "sym_max": _apply("maximum"),
    "sym_min": _apply("minimum"),
    "_sym_sqrt": _apply("sqrt"),
    "_sym_log2": lambda call, x: call.b.div(
        call.b.log(number(call, x)), call.b.log(call.value(2.0, types.f64))
    ),
    "_sym_cos": _apply("cos"),
    "_sym_sin": _apply("sin"),
}
HANDLERS.update(_FUNCTIONS)
