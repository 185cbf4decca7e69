"""Quantized models: numbers as integers (QDQ), and operators of integers (QOperator)."""

from functools import partial

import numpy as np

from ....ir import types
from ....ir.graph import Value
from ....ir.lazy_arrays import LazyArray
from ....ir.types import DType
from ...declined import Declined
from ...nn import quantize
from ..known import Known
from ..operators import MICROSOFT, Call, onnx_op
from ..tensors import dtype_of_element
from .contract import matmul


@onnx_op("QuantizeLinear")
@onnx_op("QuantizeLinear", domain=MICROSOFT)
def _quantize(
    call: Call,
    x: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: bool = True,
) -> Value:
    dtype = zero.dtype if zero is not None else types.u8
    dtype = dtype_of_element(output_dtype) if output_dtype else dtype
    if dtype.is_float and not saturate:
        raise Declined(f"quantization to {dtype} that does not saturate")
    return quantize.quantize(
        call.b,
        x,
        scale,
        zero,
        dtype=dtype,
        axis=axis,
        block=block_size,
        precision=dtype_of_element(precision) if precision else None,
    )


@onnx_op("DequantizeLinear")
@onnx_op("DequantizeLinear", domain=MICROSOFT)
def _dequantize(
    call: Call,
    codes: Value,
    scale: Value,
    zero: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    dtype = dtype_of_element(output_dtype) if output_dtype else scale.dtype
    options = {"dtype": dtype, "axis": axis, "block": block_size}
    return quantize.dequantize(call.b, codes, scale, zero, **options)


@onnx_op("DynamicQuantizeLinear")
def _quantize_dynamically(call: Call, x: Value) -> tuple[Value, Value, Value]:
    return quantize.quantize_dynamically(call.b, x)


# ---- products --------------------------------------------------------------------------------


def integer_product(
    call: Call, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None
) -> Value:
    """(x - x_zero) @ (w - w_zero) as i32, where sums wrap.

    A zero point is one number, or a vector: one number for each row of x, each column of w. That of
    x follows the product, x @ w - x_zero * (sums of w's columns), where those sums are known: what
    is multiplied stays in bytes.
    """
    b, axis = call.b, max(x.type.rank - 2, 0)
    right = weights_less_zero(call, w, w_zero, axis=-1)
    is_stored = isinstance(w, Known) and (w_zero is None or call.is_known(w_zero))
    if not is_stored or min(x.type.rank, w.type.rank) < 2 or x.dtype.bits > 8:
        return matmul(call, quantize.centered(b, x, x_zero, axis=axis), right)
    codes, zero = quantize.without_sign(b, x, x_zero)
    sums = matmul(call, b.cast(codes, dtype=types.i32), right)
    if zero is None:
        return sums
    columns = b.sum(right, axes=(-2,), keepdims=True)
    return b.sub(sums, b.mul(quantize.spread(b, zero, x.type, axis), columns))


def weights_less_zero(call: Call, w: Value, zero: Value | None, *, axis: int) -> Value:
    """w - zero as i32; of what the model stores, kept in as few bytes as hold it.

    zero is one number, or one for each place along the axis.
    """
    if zero is None or not isinstance(w, Known) or w.lazy is None or not call.is_known(zero):
        return quantize.centered(call.b, w, zero, axis=axis)
    codes, number = w.lazy, call.constant(zero).astype(np.int32)
    low, high = codes.dtype.extremes
    ends = low - number.max(), high - number.min()
    dtype = next(t for t in (types.i8, types.i16, types.i32) if _fits(ends, t))
    shape = [1] * w.type.rank
    if number.size > 1:
        shape[axis] = number.size
    shared = number.reshape(shape)

    def less() -> np.ndarray:
        return codes.load().astype(np.int32) - shared

    kept = Known.stored(LazyArray(codes.shape, dtype, less), w.name)
    return call.b.cast(kept, dtype=types.i32)


def _fits(ends: tuple[int, int], dtype: DType) -> bool:
    low, high = dtype.extremes
    return low <= ends[0] and ends[1] <= high


@onnx_op("MatMulInteger")
def _matmul_integer(
    call: Call, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None
) -> Value:
    return integer_product(call, x, w, x_zero, w_zero)


@onnx_op("QLinearMatMul")
def _qlinear_matmul(
    call: Call,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    w: Value,
    w_scale: Value,
    w_zero: Value | None,
    scale: Value,
    zero: Value | None = None,
) -> Value:
    sums = integer_product(call, x, w, x_zero, w_zero)
    spread = partial(quantize.spread, call.b)
    rows = spread(x_scale, sums.type, max(sums.type.rank - 2, 0))
    factor = call.b.mul(rows, spread(w_scale, sums.type, -1))
    return rescaled(call, sums, factor, scale, zero, x.dtype)


def rescaled(
    call: Call, sums: Value, factor: Value, scale: Value, zero: Value | None, dtype: DType
) -> Value:
    """Sums * factor / scale as codes of the zero point's dtype."""
    scale = call.cast(quantize.spread(call.b, scale, sums.type, 1), types.f32)
    factor = call.b.div(call.cast(factor, types.f32), scale)
    shared = None if zero is None else quantize.spread(call.b, zero, sums.type, 1)
    dtype = dtype if zero is None else zero.dtype
    return quantize.requantize(call.b, sums, factor, shared, dtype=dtype)
