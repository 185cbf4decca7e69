"""Activation functions, kept as one op where we have it, else written out."""

from typing import Any

from ...ir.graph import Value
from ...ir.types import f32, f64
from ..importer import Call, Declined, Scalar, handles


@handles("gelu.default")
def _gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    return call.b.gelu_tanh(x) if approximate == "tanh" else call.b.gelu(x)


@handles("hardtanh.default")
def _hardtanh(call: Call, x: Value, min_val: Scalar = -1.0, max_val: Scalar = 1.0) -> Value:
    if call.dtype.is_integer:  # torch cuts bounds to the dtype
        min_val, max_val = int(min_val), int(max_val)
    return call.b.minimum(call.b.maximum(x, call.value(min_val)), call.value(max_val))


@handles("relu6.default")
def _relu6(call: Call, x: Value) -> Value:
    return _hardtanh(call, x, 0, 6)


@handles("hardsigmoid.default")
def _hardsigmoid(call: Call, x: Value) -> Value:
    """relu6(x + 3) / 6, computed in float32 or wider, as torch's kernels do."""
    wide = call.value(x, f64 if x.dtype == f64 else f32)
    six = call.value(6.0, wide.dtype)
    return call.value(call.b.div(_cut_at_six(call, wide), six), x.dtype)


@handles("hardswish.default")
def _hardswish(call: Call, x: Value) -> Value:
    """(x * relu6(x + 3)) / 6, likewise: torch multiplies first."""
    wide = call.value(x, f64 if x.dtype == f64 else f32)
    product = call.b.mul(wide, _cut_at_six(call, wide))
    return call.value(call.b.div(product, call.value(6.0, wide.dtype)), x.dtype)


def _cut_at_six(call: Call, x: Value) -> Value:
    """relu6(x + 3)."""
    shifted = call.b.add(x, call.value(3.0, x.dtype))
    positive = call.b.maximum(shifted, call.value(0.0, x.dtype))
    return call.b.minimum(positive, call.value(6.0, x.dtype))


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


@handles("softplus.default")
def _softplus(call: Call, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    b = call.b
    scaled = b.mul(x, call.parameter(beta))
    soft = b.div(b.log1p(b.exp(scaled)), call.parameter(beta))
    return b.where(b.gt(scaled, call.value(threshold)), x, soft)


@handles("mish.default")
def _mish(call: Call, x: Value) -> Value:
    return call.b.mul(x, call.b.tanh(_softplus(call, x)))


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
