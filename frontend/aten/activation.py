"""Activation functions, kept as one op where we have it, else written out."""

from typing import Any

from ...ir.graph import Value
from ..importer import Call, Declined, Scalar, handles


@handles("gelu.default")
def _gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    return call.b.gelu_tanh(x) if approximate == "tanh" else call.b.gelu(x)


@handles("relu6.default")
def _relu6(call: Call, x: Value) -> Value:
    return call.b.minimum(call.b.relu(x), call.value(6))


@handles("hardtanh.default")
def _hardtanh(call: Call, x: Value, min_val: Scalar = -1.0, max_val: Scalar = 1.0) -> Value:
    return call.b.minimum(call.b.maximum(x, call.value(min_val)), call.value(max_val))


def _hard_gate(call: Call, x: Value) -> Value:
    """Six times the gate: the division comes last, as in torch."""
    return call.b.minimum(call.b.relu(call.b.add(x, call.value(3))), call.value(6))


@handles("hardsigmoid.default")
def _hardsigmoid(call: Call, x: Value) -> Value:
    return call.b.div(_hard_gate(call, x), call.value(6))


@handles("hardswish.default")
def _hardswish(call: Call, x: Value) -> Value:
    return call.b.div(call.b.mul(x, _hard_gate(call, x)), call.value(6))


@handles("leaky_relu.default")
def _leaky_relu(call: Call, x: Value, negative_slope: Scalar = 0.01) -> Value:
    b = call.b
    return b.where(b.gt(x, call.value(0)), x, b.mul(x, call.parameter(negative_slope)))


@handles("elu.default")
def _elu(
    call: Call, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1
) -> Value:
    b = call.b
    below = b.mul(b.expm1(b.mul(x, call.parameter(input_scale))), call.parameter(alpha))
    return b.mul(b.where(b.gt(x, call.value(0)), x, below), call.parameter(scale))


@handles("celu.default")
def _celu(call: Call, x: Value, alpha: float = 1.0) -> Value:
    b = call.b
    below = b.mul(b.expm1(b.div(x, call.parameter(alpha))), call.parameter(alpha))
    return b.where(b.gt(x, call.value(0)), x, below)


@handles("selu.default")
def _selu(call: Call, x: Value) -> Value:
    # Klambauer et al., "Self-Normalizing Neural Networks", 2017, section 2
    return _elu(call, x, alpha=1.6732632423543772, scale=1.0507009873554805)


@handles("softplus.default")
def _softplus(call: Call, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    b = call.b
    scaled = b.mul(x, call.parameter(beta))
    soft = b.div(b.log1p(b.exp(scaled)), call.parameter(beta))
    return b.where(b.gt(scaled, call.value(threshold)), x, soft)


@handles("mish.default")
def _mish(call: Call, x: Value) -> Value:
    return call.b.mul(x, call.b.tanh(_softplus(call, x)))


@handles("log_sigmoid.default")
def _log_sigmoid(call: Call, x: Value) -> Value:
    # min(x, 0) - log(1 + exp(-|x|)): exact for large magnitudes
    b = call.b
    tail = b.log1p(b.exp(b.neg(b.abs(x))))
    return b.sub(b.minimum(x, call.value(0)), tail)


@handles("threshold.default")
def _threshold(call: Call, x: Value, threshold: Scalar, value: Scalar) -> Value:
    # written so that a NaN stays one
    return call.b.where(call.b.le(x, call.value(threshold)), call.value(value), x)


@handles("glu.default")
def _glu(call: Call, x: Value, dim: int = -1) -> Value:
    b, axis = call.b, dim % x.type.rank
    half = call.static(x.shape[axis], "the gated axis") // 2
    first = b.slice(x, axis=axis, start=0, stop=half)
    return b.mul(first, b.sigmoid(b.slice(x, axis=axis, start=half, stop=2 * half)))


@handles("rrelu_with_noise_functional.default")
def _rrelu(
    call: Call,
    x: Value,
    noise: Value,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    train: bool = False,
    _: Any = None,
) -> tuple[Value, Value]:
    if train:
        raise Declined("random slopes in training mode; call eval() on the module")
    return _leaky_relu(call, x, (lower + upper) / 2), noise


@handles("prelu.default", "_prelu_kernel.default")
def _prelu(call: Call, x: Value, weight: Value) -> Value:
    b = call.b
    if weight.type.rank == 1 and x.type.rank > 2:
        # one slope a channel, and channels are axis 1
        weight = b.reshape(weight, shape=(weight.shape[0], *[1] * (x.type.rank - 2)))
    return b.where(b.gt(x, call.value(0)), x, b.mul(x, weight))
