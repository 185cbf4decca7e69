"""Convolutions of integers."""

from typing import Any

from ....ir.graph import Value
from ...nn import quantize
from ..operators import Call, find_row, onnx_op
from . import conv as _  # noqa: F401  fills the table
from .quantize import rescaled, weights_less_zero

_CONV = find_row("", "Conv", 22)


def _integer_conv(
    call: Call, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, **window: Any
) -> Value:
    """(x - x_zero) * (w - w_zero) summed over windows, as i32; w_zero may be one a channel."""
    left = quantize.centered(call.b, x, x_zero, axis=1)
    right = weights_less_zero(call, w, w_zero, axis=0)
    return _CONV.handler(call, left, right, **window)


@onnx_op("ConvInteger", attributes=_CONV.attributes)
def _conv_integer(
    call: Call,
    x: Value,
    w: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    **window: Any,
) -> Value:
    return _integer_conv(call, x, w, x_zero, w_zero, **window)


@onnx_op("QLinearConv", attributes=_CONV.attributes)
def _qlinear_conv(
    call: Call,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    w: Value,
    w_scale: Value,
    w_zero: Value | None,
    scale: Value,
    zero: Value | None,
    bias: Value | None = None,
    **window: Any,
) -> Value:
    b = call.b
    sums = _integer_conv(call, x, w, x_zero, w_zero, **window)
    if bias is not None:
        sums = b.add(sums, quantize.spread(b, bias, sums.type, 1))
    channels = quantize.spread(b, w_scale, sums.type, 1)
    factor = b.mul(call.reshape(x_scale, ()), channels)
    return rescaled(call, sums, factor, scale, zero, x.dtype)
