"""Numbers as integers with a scale and a zero point, and products of such integers.

A scale, and the zero point of the same shape, is one number, or a vector along `axis` of x, or has
x's shape with `axis` divided into blocks of `block` elements that share one (the last block may be
short). Zero points may be of any integer dtype; None is 0.
"""

import ml_dtypes

from ...ir.builder import Builder
from ...ir.dim import Dim
from ...ir.graph import Value
from ...ir.op import normalize_axis
from ...ir.types import DType, TensorType, f32, i16, i32, u8
from .pad import each_repeated, part


def quantize(
    b: Builder,
    x: Value,
    scale: Value,
    zero: Value | None,
    *,
    dtype: DType,
    axis: int = 1,
    block: int = 0,
    precision: DType | None = None,
) -> Value:
    """round(x / scale) + zero, kept within `dtype`; ties to even. -> x's shape.

    The quotient is computed in `precision`, by default the dtype of the scale. Rounding does not
    move a float: x / scale becomes the nearest number that `dtype` has, which is finite.
    """
    compute = precision or scale.dtype
    x, scale = (_as(b, v, compute) for v in (x, spread(b, scale, x.type, axis, block)))
    quotient = b.div(x, scale)
    if dtype.is_integer:
        quotient = _as(b, b.round(quotient), f32 if compute.bits < 32 else compute)
    if zero is not None:
        quotient = b.add(quotient, _as(b, spread(b, zero, x.type, axis, block), quotient.dtype))
    return b.cast(_within(b, quotient, dtype), dtype=dtype)


def dequantize(
    b: Builder,
    codes: Value,
    scale: Value,
    zero: Value | None,
    *,
    dtype: DType,
    axis: int = 1,
    block: int = 0,
) -> Value:
    """(codes - zero) * scale, computed in `dtype`. -> the shape of the codes.

    Codes that are stored become one op, which kernels read in place of the numbers.
    """
    if codes.node is None and codes.dtype.is_integer and codes.type.rank and _is_static(codes):
        is_shared = scale.type.rank < 2 and scale.type.numel == 1
        at = 0 if is_shared else normalize_axis(axis, codes.type.rank)
        return _decoded(b, codes, scale, zero, dtype, at, block)
    values = _as(b, codes, dtype)
    if zero is not None:
        values = b.sub(values, _as(b, spread(b, zero, codes.type, axis, block), dtype))
    return b.mul(values, _as(b, spread(b, scale, codes.type, axis, block), dtype))


def quantize_dynamically(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x as u8, with the scale and the zero point that just hold all of it and 0.

    scale = (max(x, 0) - min(x, 0)) / 255, or 1 where all is 0; zero = round(-min / scale).
    -> u8 of x's shape, the scale in x's dtype, the zero point as u8.
    """
    axes = tuple(range(x.type.rank))
    none = b.constant(0.0, x.dtype)
    high, low = (f(x, axes=axes) if axes else x for f in (b.max, b.min))
    high, low = b.maximum(high, none), b.minimum(low, none)
    scale = b.div(b.sub(high, low), b.constant(255.0, x.dtype))
    scale = b.where(b.eq(high, low), b.constant(1.0, x.dtype), scale)
    zero = b.cast(b.round(_within(b, b.div(b.neg(low), scale), u8)), dtype=u8)
    return quantize(b, x, scale, zero, dtype=u8), scale, zero


def centered(b: Builder, codes: Value, zero: Value | None, *, axis: int) -> Value:
    """codes - zero as i32; zero is one number, or a vector along the axis, or broadcasts."""
    if zero is None:
        return b.cast(codes, dtype=i32)
    if zero.type.rank == 1:
        zero = spread(b, zero, codes.type, axis)
    # what lies in memory is no wider than it has to be
    narrow = i16 if codes.dtype.bits <= 8 and zero.dtype.bits <= 8 else i32
    difference = b.sub(b.cast(codes, dtype=narrow), b.cast(zero, dtype=narrow))
    return b.cast(difference, dtype=i32)


def without_sign(b: Builder, codes: Value, zero: Value | None) -> tuple[Value, Value | None]:
    """Codes of 8 bits as u8 with a zero point in i32: (codes - zero) is the same."""
    if zero is not None:
        zero = b.cast(zero, dtype=i32)
    if codes.dtype == u8:
        return codes, zero
    more = b.constant(128, i32)
    codes = b.cast(b.add(b.cast(codes, dtype=i32), more), dtype=u8)
    return codes, more if zero is None else b.add(zero, more)


def requantize(
    b: Builder,
    sums: Value,
    scale: Value,
    zero: Value | None,
    *,
    dtype: DType,
) -> Value:
    """round(sums * scale) + zero, kept within `dtype`: integers after a product, ties to even.

    sums: i32; scale, f32, and zero broadcast to it. Computed in f32.
    """
    product = b.round(b.mul(b.cast(sums, dtype=f32), scale))
    if zero is not None:
        product = b.add(product, b.cast(zero, dtype=f32))
    return b.cast(_within(b, product, dtype), dtype=dtype)


def spread(b: Builder, shared: Value, x: TensorType, axis: int, block: int = 0) -> Value:
    """A scale or zero point in a shape that broadcasts to x."""
    if shared.type.numel == 1 and shared.type.rank < 2:
        return b.reshape(shared, shape=())
    axis = normalize_axis(axis, x.rank)
    if shared.type.rank == 1:
        return b.reshape(shared, shape=(*shared.shape, *(1,) * (x.rank - 1 - axis)))
    return _repeated(b, shared, x.shape[axis], axis, block) if block else shared


def _repeated(b: Builder, shared: Value, size: Dim, axis: int, block: int) -> Value:
    """Each element `block` times along the axis, up to `size` of them."""
    return part(b, each_repeated(b, shared, axis, block), axis, 0, size)


def _decoded(
    b: Builder,
    codes: Value,
    scale: Value,
    zero: Value | None,
    dtype: DType,
    axis: int,
    block: int,
) -> Value:
    """The op `dequantize`, whose scales lie along the last axis: blocks there, vectors in front."""
    is_blocked = scale.type.rank > 1
    rest = [i for i in range(codes.type.rank) if i != axis]
    perm = (*rest, axis) if is_blocked else (axis, *rest)
    turned = b.transpose(codes, perm=perm)
    *kept, last = turned.shape

    def shared(v: Value) -> Value:
        if is_blocked:
            v = b.transpose(v, perm=perm)
            if last % block or v.shape[-1] != last // block:
                v = _repeated(b, v, last, len(kept), block)
        elif v.type.numel == 1:
            v = b.broadcast_to(b.reshape(v, shape=(1,) * len(perm)), shape=(*kept, 1))
        elif kept:
            v = b.reshape(v, shape=(*v.shape, *(1,) * len(kept)))
            v = b.broadcast_to(v, shape=(*kept, 1))
        return v

    others = [shared(v) for v in (scale, zero) if v is not None]
    values = b.dequantize(turned, *others, dtype=dtype)
    return b.transpose(values, perm=tuple(sorted(range(len(perm)), key=perm.__getitem__)))


def _within(b: Builder, x: Value, dtype: DType) -> Value:
    """X between the least and the largest number of a dtype; NaN stays."""
    if dtype.is_integer:
        low, high = map(float, dtype.extremes)
    else:
        high = float(ml_dtypes.finfo(dtype.numpy).max)
        low = -high
    return b.maximum(b.minimum(x, b.constant(high, x.dtype)), b.constant(low, x.dtype))


def _as(b: Builder, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else b.cast(x, dtype=dtype)


def _is_static(x: Value) -> bool:
    return all(isinstance(size, int) for size in x.shape)
