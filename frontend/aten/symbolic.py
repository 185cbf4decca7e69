"""Fractions computed from sizes, as float64 values without axes.

Whole numbers never come here: they are dims.
"""

from collections.abc import Callable

from ...ir import types
from ...ir.graph import Value
from ..importer import HANDLERS, Call, Handler, Scalar, refuses

Number = Value | Scalar


def fraction(call: Call, x: Number) -> Value:
    """A Python number, a dim or another fraction as f64[]."""
    return call.value(x, types.f64)


def _apply(op: str) -> Handler:
    return lambda call, *numbers: getattr(call.b, op)(*(fraction(call, x) for x in numbers))


# names of the Python functions that torch leaves in a graph for symbolic floats
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _apply(name) for name in ("add", "sub", "mul", "pow", "neg")},
    "truediv": _apply("div"),
    "sym_float": fraction,
    "_sym_sqrt": _apply("sqrt"),
    "_sym_log2": lambda call, x: call.b.div(
        call.b.log(fraction(call, x)), call.b.log(call.value(2.0, types.f64))
    ),
    "_sym_cos": _apply("cos"),
    "_sym_sin": _apply("sin"),
}
HANDLERS.update(_FUNCTIONS)

refuses(
    "torch.vmap; write the axis it maps over into the module",
    *("_add_batch_dim", "_remove_batch_dim"),
)
