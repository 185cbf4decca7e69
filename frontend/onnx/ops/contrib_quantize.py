"""Quantized operators of com.microsoft: codes that are decoded, and products of integers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ....ir import types
from ....ir.graph import Value
from ....ir.lazy_arrays import LazyArray
from ....ir.types import DType, f32
from ...declined import Declined
from ...nn import quantize
from ...nn.pad import part
from ..known import Known
from ..operators import Call, find_row
from .contract import matmul
from .contrib import microsoft
from .elementwise import formula
from .quantize import integer_product, rescaled
from .reduce import fold
from .rnn import lstm

_CODES = {2: types.u2, 4: types.u4, 8: types.u8}


def _codes(packed: Value, bits: int, width: int) -> Known:
    """Codes that share bytes, the first in the lowest bits: u8 [N, ..] -> [N, width]."""
    if bits not in _CODES:
        raise Declined(f"weights of {bits} bits")
    dtype, count = _CODES[bits], packed.shape[0]
    if not isinstance(packed, Known) or packed.lazy is None or not isinstance(count, int):
        raise Declined("packed weights that are computed")
    source = packed.lazy

    def unpack() -> np.ndarray:
        data = source.load().reshape(count, -1)
        parts = [data >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(count, -1)[:, :width].astype(dtype.numpy)

    return Known.stored(LazyArray((count, width), dtype, unpack), packed.name)


def _zeros(call: Call, zero: Value | None, bits: int, count: int, groups: int) -> Value:
    """Zero points [N, groups]: the middle of the range, packed as the codes are, or floats."""
    if zero is None:
        return call.b.full(value=1 << bits - 1, shape=(count, groups), dtype=types.u8)
    if zero.dtype.is_float:
        return call.reshape(zero, (count, groups))
    rows = -(-groups * bits // 8)
    packed = Known.of_array(call.constant(zero).reshape(count, rows))
    return _codes(packed, bits, groups)


@microsoft("MatMulNBits")
def _matmul_bits(
    call: Call,
    x: Value,
    packed: Value,
    scales: Value,
    zeros: Value | None = None,
    order: Value | None = None,
    bias: Value | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value:
    """x [.., K] @ w [N, K]^T; w is stored in blocks along K that share a scale and a zero point."""
    if order is not None or weight_prepacked:
        raise Declined("weights whose columns are in another order")
    b, groups = call.b, -(-K // block_size)
    codes = _codes(packed, bits, groups * block_size)
    scale = call.reshape(scales, (N, groups))
    zero = _zeros(call, zeros, bits, N, groups)
    w = b.dequantize(codes, scale, zero, dtype=x.dtype)
    w = part(b, w, 1, 0, K)
    rows = x if x.type.rank > 1 else call.reshape(x, (1, K))
    y = b.matmul(rows, w, transpose_w=True)
    y = y if bias is None else b.add(y, bias)
    return y if x.type.rank > 1 else call.reshape(y, (N,))


@microsoft("GatherBlockQuantized")
def _gather_blocks(
    call: Call,
    data: Value,
    index: Value,
    scales: Value,
    zeros: Value | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Value:
    """Rows of a table that is stored in blocks along its rows."""
    if gather_axis or quantize_axis % max(data.type.rank, 1) != 1 or data.type.rank != 2:
        raise Declined("a table that is not stored by rows")
    b, (count, groups) = call.b, scales.shape
    zero = None
    if data.dtype == types.u8:
        width = call.static(data.shape[1], "the width of the table") * 8 // bits
        data = _codes(data, bits, width)
        zero = _zeros(call, zeros, bits, count, groups)
    elif zeros is not None:
        zero = zeros
    others = [b.gather(v, index, axis=0) for v in (scales, zero) if v is not None]
    return b.dequantize(b.gather(data, index, axis=0), *others, dtype=scales.dtype)


# ---- products --------------------------------------------------------------------------------


@microsoft("MatMulIntegerToFloat")
def _integers_to_float(
    call: Call,
    x: Value,
    w: Value,
    x_scale: Value,
    w_scale: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    b = call.b
    sums = call.cast(integer_product(call, x, w, x_zero, w_zero), x_scale.dtype)
    rows = quantize.spread(b, x_scale, sums.type, max(sums.type.rank - 2, 0))
    y = b.mul(sums, b.mul(rows, quantize.spread(b, w_scale, sums.type, -1)))
    return y if bias is None else b.add(y, bias)


@microsoft("DynamicQuantizeMatMul")
def _dynamic_matmul(
    call: Call,
    x: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    codes, scale, zero = quantize.quantize_dynamically(call.b, x)
    return _integers_to_float(call, codes, w, scale, w_scale, zero, w_zero, bias)


@microsoft("QGemm")
def _qgemm(
    call: Call,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    bias: Value | None = None,
    scale: Value | None = None,
    zero: Value | None = None,
    *,
    alpha: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Value:
    b = call.b
    x = call.transpose(x, (1, 0)) if transA else x
    left = quantize.centered(b, x, x_zero, axis=0)
    right = quantize.centered(b, w, w_zero, axis=0 if transB else 1)
    sums = matmul(call, left, call.transpose(right, (1, 0)) if transB else right)
    if bias is not None:
        sums = b.add(sums, bias)
    columns = quantize.spread(b, w_scale, sums.type, 1)
    factor = b.mul(b.mul(call.reshape(x_scale, ()), columns), call.number(alpha, f32))
    if scale is None:
        return b.mul(call.cast(sums, f32), factor)
    return rescaled(call, sums, factor, scale, zero, x.dtype)


# ---- what is computed with floats in between -------------------------------------------------


def _decoded(call: Call, x: Value, scale: Value, zero: Value | None) -> Value:
    return quantize.dequantize(call.b, x, scale, zero, dtype=scale.dtype)


def _encoded(call: Call, x: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    return quantize.quantize(call.b, x, scale, zero, dtype=dtype)


def _pairwise(name: str, op: str) -> None:
    @microsoft(name)
    def _(
        call: Call,
        x: Value,
        x_scale: Value,
        x_zero: Value | None,
        y: Value,
        y_scale: Value,
        y_zero: Value | None,
        scale: Value,
        zero: Value | None = None,
    ) -> Value:
        both = _decoded(call, x, x_scale, x_zero), _decoded(call, y, y_scale, y_zero)
        return _encoded(call, getattr(call.b, op)(*both), scale, zero, x.dtype)


for _name, _op in (("QLinearAdd", "add"), ("QLinearMul", "mul")):
    _pairwise(_name, _op)


def _one(name: str, function: Callable[..., Value], **defaults: float) -> None:
    """An operator of one quantized tensor; the defaults are of its attributes."""

    def run(
        call: Call,
        x: Value,
        x_scale: Value,
        x_zero: Value | None,
        scale: Value,
        zero: Value | None = None,
        **given: float,
    ) -> Value:
        y = function(call, _decoded(call, x, x_scale, x_zero), **{**defaults, **given})
        return _encoded(call, y, scale, zero, x.dtype)

    microsoft(name, attributes={key: type(x) for key, x in defaults.items()})(run)


def _global_pool(call: Call, x: Value, channels_last: bool) -> Value:
    axes = range(1, x.type.rank - 1) if channels_last else range(2, x.type.rank)
    return fold("mean")(call, x, tuple(axes), True)


def _softmax(call: Call, x: Value, axis: int, opset: int) -> Value:
    if opset < 13 and call.axis(axis, x) != x.type.rank - 1:
        raise Declined(f"softmax over all axes from {axis} on")
    return call.b.softmax(x, axis=call.axis(axis, x))


_one("QLinearSigmoid", lambda call, x: call.b.sigmoid(x))
_one("QLinearLeakyRelu", partial(formula, "LeakyRelu"), alpha=0.01)
_one("QLinearGlobalAveragePool", _global_pool, channels_last=False)
_one("QLinearSoftmax", _softmax, axis=-1, opset=13)


@microsoft("QLinearConcat")
def _concat(call: Call, scale: Value, zero: Value, *parts: Value, axis: int) -> Value:
    values = [_decoded(call, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    joined = call.b.concat(*values, axis=call.axis(axis, values[0]))
    return _encoded(call, joined, scale, zero, zero.dtype)


@microsoft("DynamicQuantizeLSTM", attributes=find_row("", "LSTM", 22).attributes)
def _lstm(
    call: Call,
    x: Value,
    w: Value,
    r: Value,
    bias: Value | None,
    lengths: Value | None,
    hidden: Value | None,
    cell: Value | None,
    peepholes: Value | None,
    *quantization: Value,
    **attributes: Any,
) -> tuple[Value, ...]:
    """Weights [D, I, gates * H] are decoded; what they meet is left as it is, and not quantized."""
    scales = quantization[::2], quantization[1::2]
    w, r = (_of_directions(call, v, *pair) for v, *pair in zip((w, r), *scales))
    return lstm(call, x, w, r, bias, lengths, hidden, cell, peepholes, **attributes)


def _of_directions(call: Call, codes: Value, scale: Value, zero: Value) -> Value:
    """Codes [D, I, N], with a scale for each direction, or each column of it -> [D, N, I]."""
    b, f = call.b, scale.dtype

    def columns(v: Value) -> Value:
        *_, count = (1, *v.shape) if v.type.rank == 2 else (1,)
        return call.cast(call.reshape(v, (v.shape[0], 1, count)), f)

    values = b.mul(b.sub(call.cast(codes, f), columns(zero)), columns(scale))
    return call.transpose(values, (0, 2, 1))
