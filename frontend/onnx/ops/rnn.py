"""Recurrent layers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ....ir.builder import Builder
from ....ir.graph import Value
from ...declined import Declined
from ...nn import rnn
from ...nn.pad import part
from ..operators import Call, onnx_op


class _Function(NamedTuple):
    """An activation of (builder, x, alpha, beta), and what these are by default; None: unused."""

    apply: Callable[[Builder, Value, float, float], Value]
    alpha: float | None = None
    beta: float | None = None


def _where_above(b: Builder, x: Value, limit: float, below: Value) -> Value:
    return b.where(b.ge(x, b.constant(limit, x.dtype)), x, below)


def _scaled(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    """alpha * x + beta."""
    return b.add(b.mul(x, b.constant(alpha, x.dtype)), b.constant(beta, x.dtype))


def _hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    zero, one = b.constant(0.0, x.dtype), b.constant(1.0, x.dtype)
    return b.minimum(b.maximum(_scaled(b, x, alpha, beta), zero), one)


def _softplus(b: Builder, x: Value, _: float, __: float) -> Value:
    """log(1 + exp(x)), as max(x, 0) + log(1 + exp(-|x|))."""
    return b.add(b.relu(x), b.log1p(b.exp(b.neg(b.abs(x)))))


_FUNCTIONS = {
    "relu": _Function(lambda b, x, *_: b.relu(x)),
    "tanh": _Function(lambda b, x, *_: b.tanh(x)),
    "sigmoid": _Function(lambda b, x, *_: b.sigmoid(x)),
    "affine": _Function(_scaled, 1.0, 0.0),
    "leakyrelu": _Function(
        lambda b, x, alpha, _: _where_above(b, x, 0.0, _scaled(b, x, alpha, 0.0)), 0.01
    ),
    "thresholdedrelu": _Function(
        lambda b, x, alpha, _: _where_above(b, x, alpha, b.constant(0.0, x.dtype)), 1.0
    ),
    "scaledtanh": _Function(
        lambda b, x, alpha, beta: _scaled(b, b.tanh(_scaled(b, x, beta, 0.0)), alpha, 0.0), 1.0, 1.0
    ),
    "hardsigmoid": _Function(_hard_sigmoid, 0.2, 0.5),
    "elu": _Function(
        lambda b, x, alpha, _: _where_above(b, x, 0.0, _scaled(b, b.expm1(x), alpha, 0.0)), 1.0
    ),
    "softsign": _Function(
        lambda b, x, *_: b.div(x, b.add(b.abs(x), b.constant(1.0, x.dtype))),
    ),
    "softplus": _Function(_softplus),
}


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
    given, more = iter(alphas or ()), iter(betas or ())
    chosen: list[tuple[_Function, float, float]] = []
    for name in names:
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise Declined(f"the activation {name!r}")
        alpha = 0.0 if function.alpha is None else next(given, function.alpha)
        beta = 0.0 if function.beta is None else next(more, function.beta)
        chosen.append((function, alpha, beta))
    return [_of_directions(chosen[i :: len(default)]) for i in range(len(default))]


def _of_directions(functions: Sequence[tuple[_Function, float, float]]) -> rnn.Activation:
    """One function of [D, ...]: where the directions differ, each of its own part."""

    def apply(b: Builder, x: Value) -> Value:
        if len(set(functions)) == 1:
            function, alpha, beta = functions[0]
            return function.apply(b, x, alpha, beta)
        parts = [
            function.apply(b, part(b, x, 0, i, i + 1), alpha, beta)
            for i, (function, alpha, beta) in enumerate(functions)
        ]
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
        peeks = {g: part(b, rows, 2, i * size, (i + 1) * size) for i, g in enumerate("iof")}
    forget = bool(input_forget)
    options = {"activations": functions, "peepholes": peeks, "couples_forget": forget}
    return rnn.lstm(b, layer, *states, **options)


def _gru(
    b: Builder, layer: rnn.Layer, states: Sequence[Value], functions, _, __, linear_before_reset
) -> tuple[Value, ...]:
    resets_product = bool(linear_before_reset)
    return rnn.gru(b, layer, *states, resets_product=resets_product, activations=functions)


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
        input_forget: int = 0,
        layout: int = 0,
        linear_before_reset: int = 0,
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
        biases = (None, None)
        if bias is not None:
            biases = tuple(part(b, bias, 1, i * width, (i + 1) * width) for i in range(2))
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
