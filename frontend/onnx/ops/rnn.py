"""Recurrent layers."""

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

from ....ir.builder import Builder
from ....ir.graph import Value
from ...declined import Declined
from ...nn import rnn
from ...nn.formula import Term, computed
from ...nn.pad import part, pieces
from ..operators import Call, onnx_op
from .elementwise import FORMULAS

# activations as formulas of x, alpha and beta, with these by default, of those that have them
_FUNCTIONS: dict[str, tuple[Callable[..., Term], dict[str, float]]] = {
    **{
        name.lower(): FORMULAS[name]
        for name in ("LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus")
    },
    **{name: (methodcaller(name), {}) for name in ("relu", "tanh", "sigmoid")},
    "affine": (lambda x, alpha, beta: x * alpha + beta, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (lambda x, alpha, beta: (x * beta).tanh() * alpha, {"alpha": 1.0, "beta": 1.0}),
    # the operator of this name leaves out alpha itself
    "thresholdedrelu": (lambda x, alpha: (x >= alpha).where(x, 0.0), {"alpha": 1.0}),
}

_Chosen = tuple[Any, ...]  # a formula, and its numbers


def _activations(
    names: Sequence[str] | None,
    default: Sequence[str],
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    directions: int,
) -> list[rnn.Activation]:
    """The functions of all directions at once, in the order of `default`.

    Alphas and betas are for those functions, in order, that have one.
    """
    names = names or (*default,) * directions
    if len(names) != len(default) * directions:
        raise Declined(f"{len(names)} activations for {directions} directions")
    given = {"alpha": iter(alphas or ()), "beta": iter(betas or ())}
    chosen: list[_Chosen] = []
    for name in names:
        if name.lower() not in _FUNCTIONS:
            raise Declined(f"the activation {name!r}")
        function, defaults = _FUNCTIONS[name.lower()]
        numbers = (next(given[key], default) for key, default in defaults.items())
        chosen.append((function, *numbers))
    return [_of_directions(chosen[i :: len(default)]) for i in range(len(default))]


def _of_directions(functions: Sequence[_Chosen]) -> rnn.Activation:
    """One function of [D, ...]: where the directions differ, each of its own part."""

    def one(b: Builder, x: Value, function: Callable[..., Term], *numbers: float) -> Value:
        return computed(b, lambda n: function(n, *numbers), [x], x.dtype)

    def apply(b: Builder, x: Value) -> Value:
        if len(set(functions)) == 1:
            return one(b, x, *functions[0])
        parts = [one(b, part(b, x, 0, i, i + 1), *chosen) for i, chosen in enumerate(functions)]
        return b.concat(*parts, axis=0)

    return apply


_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


class _Kind(NamedTuple):
    """The order of its gates, its activations by default, how many states, and what computes it."""

    order: str
    activations: tuple[str, ...]
    states: int
    compute: Callable[..., tuple[Value, ...]]


def _lstm(
    b: Builder, layer: rnn.Layer, states: Sequence[Value], functions, peepholes, input_forget, _
) -> tuple[Value, ...]:
    peeks = None
    if peepholes is not None:
        size = layer.r.shape[2]
        rows = b.reshape(peepholes, shape=(peepholes.shape[0], 1, 3 * size))
        peeks = dict(zip("iof", pieces(b, rows, 2, (size,) * 3)))
    options = {"activations": functions, "peepholes": peeks, "couples_forget": input_forget}
    return rnn.lstm(b, layer, *states, **options)


def _gru(
    b: Builder, layer: rnn.Layer, states: Sequence[Value], functions, _, __, linear_before_reset
) -> tuple[Value, ...]:
    options = {"activations": functions, "resets_product": linear_before_reset}
    return rnn.gru(b, layer, *states, **options)


def _rnn(b: Builder, layer: rnn.Layer, states: Sequence[Value], functions, *_) -> tuple[Value, ...]:
    return rnn.rnn(b, layer, *states, activation=functions[0])


def _recurrent(kind: _Kind) -> Callable[..., tuple[Value, ...]]:
    def run(
        call: Call,
        x: Value,
        w: Value,
        r: Value,
        bias: Value | None = None,
        lengths: Value | None = None,
        hidden: Value | None = None,
        cell: Value | None = None,
        peepholes: Value | None = None,
        *,
        activations: Sequence[str] | None = None,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,  # says again what the weights say
        input_forget: bool = False,
        layout: bool = False,
        linear_before_reset: bool = False,
        output_sequence: int | None = None,  # all outputs are there anyway
    ) -> tuple[Value, ...]:
        if direction not in _REVERSE:
            raise Declined(f"direction {direction!r}")
        reverse = _REVERSE[direction]
        b, default, width = call.b, kind.activations, w.shape[1]
        functions = _activations(
            activations, default, activation_alpha, activation_beta, len(reverse)
        )

        def turned(v: Value) -> Value:
            return b.transpose(v, perm=(1, 0, 2)) if layout else v

        x = turned(x)
        zeros = b.full(value=0, shape=(len(reverse), x.shape[1], r.shape[2]), dtype=x.dtype)
        states = [zeros if v is None else turned(v) for v in (hidden, cell)[: kind.states]]
        biases = (None, None) if bias is None else pieces(b, bias, 1, (width, width))
        layer = rnn.Layer(x, w, r, kind.order, *biases, lengths, reverse, clip)
        outputs, *last = kind.compute(
            b, layer, states, functions, peepholes, input_forget, linear_before_reset
        )
        outputs = b.transpose(outputs, perm=(2, 0, 1, 3)) if layout else outputs
        return outputs, *map(turned, last)

    return run


lstm = onnx_op("LSTM")(_recurrent(_Kind("iofc", ("Sigmoid", "Tanh", "Tanh"), 2, _lstm)))
onnx_op("GRU")(_recurrent(_Kind("zrh", ("Sigmoid", "Tanh"), 1, _gru)))
onnx_op("RNN")(_recurrent(_Kind("h", ("Tanh",), 1, _rnn)))
