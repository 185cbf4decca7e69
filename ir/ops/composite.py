"""Composites over rows: recognized by passes, and taken apart by `decompose` where no kernel is."""

import numpy as np

from ..op import normalize_axis, op
from ..types import DType, f32


def _row_weight(x, weight, what: str) -> None:
    if not x.rank:
        raise TypeError(f"x is {x}: a norm runs over the last axis, and it has none")
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: must be floats")
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise TypeError(f"{what} is {weight}, x is {x}: {what} must be {x.dtype}[{x.shape[-1]}]")


@op(kind="composite", is_whole=True)
def softmax(x, *, axis: int = -1):
    """exp(x - max(x)) / sum(exp(x - max(x))) along axis, in float32 inside.

    Kernels divide once a row and multiply an element, which is one rounding more: see
    docs/numerics.md.
    """
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: must be floats")
    normalize_axis(axis, x.rank)
    return x


@softmax.set_reference
def _(x, *, axis):
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return e / e.sum(axis, keepdims=True)


@softmax.set_decomposition
def _(b, x, *, axis):
    e = b.exp(b.sub(x, b.max(x, axes=(axis,), keepdims=True)))
    return b.mul(e, b.reciprocal(b.sum(e, axes=(axis,), keepdims=True)))


@op(kind="composite", is_whole=True)
def rms_norm(x, weight, *, eps: float = 1e-6):
    """x / sqrt(mean(x * x) + eps) * weight. x: [..., d], weight: [d] -> [..., d].

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4.
    """
    _row_weight(x, weight, "weight")
    return x


@rms_norm.set_reference
def _(x, weight, *, eps):
    return x / np.sqrt(_mean(x * x) + eps) * weight


@rms_norm.set_decomposition
def _(b, x, weight, *, eps):
    square = b.mean(b.mul(x, x), axes=(-1,), keepdims=True)
    return b.mul(b.mul(x, b.rsqrt(b.add(square, b.constant(eps, x.dtype)))), weight)


@op(kind="composite", is_whole=True)
def layer_norm(x, weight, bias, *, eps: float = 1e-5):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias. x: [..., d]; weight, bias: [d].

    Ba, Kiros and Hinton, "Layer Normalization", 2016, eq. 4; the variance is the biased one.
    """
    _row_weight(x, weight, "weight")
    _row_weight(x, bias, "bias")
    return x


@layer_norm.set_reference
def _(x, weight, bias, *, eps):
    centered = x - _mean(x)
    return centered / np.sqrt(_mean(centered * centered) + eps) * weight + bias


def _mean(x):
    """Of the last axis, which is kept: NaN where it is empty."""
    return x.sum(-1, keepdims=True) / x.shape[-1]


@layer_norm.set_decomposition
def _(b, x, weight, bias, *, eps):
    centered = b.sub(x, b.mean(x, axes=(-1,), keepdims=True))
    variance = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    scaled = b.mul(centered, b.rsqrt(b.add(variance, b.constant(eps, x.dtype))))
    return b.add(b.mul(scaled, weight), bias)


@op(kind="composite", decodes=True)
def dequantize(codes, scale, zero=None, *, dtype: DType = f32):
    """(codes - zero) * scale, as numbers of `dtype`. codes: integers [..., K].

    scale and zero (0 without one): [..., K / group]; `group` neighbours along the last axis share
    them. The arithmetic is made in `dtype`, each operation rounded: ONNX, "DequantizeLinear" with
    blocks, but that a zero may be no integer.
    """
    if not codes.dtype.is_integer or not dtype.is_float:
        raise TypeError(f"codes are {codes}, to become {dtype}: must be integers to become floats")
    for name, shared in (("scale", scale), ("zero", zero)):
        if shared is not None and (
            shared.shape[:-1] != codes.shape[:-1] or not _groups(codes, shared)
        ):
            raise TypeError(
                f"{name} is {shared}, codes are {codes}: the same but for the last axis,"
                " where it divides that of the codes"
            )
    return codes.with_dtype(dtype)


@dequantize.set_decomposition
def _(b, codes, scale, zero=None, *, dtype):
    def spread(shared):
        """[..., K / group]  ->  [..., K]"""
        group = codes.shape[-1] // max(shared.shape[-1], 1)
        shared = b.reshape(shared, shape=(*shared.shape, 1))
        wide = b.broadcast_to(shared, shape=(*shared.shape[:-1], group))
        return b.cast(b.reshape(wide, shape=codes.shape), dtype=dtype)

    values = b.cast(codes, dtype=dtype)
    if zero is not None:
        values = b.sub(values, spread(zero))
    return b.mul(values, spread(scale))


def _groups(codes, shared) -> bool:
    """Whether the last axis of `shared` divides that of the codes."""
    whole, parts = codes.shape[-1], shared.shape[-1] if shared.rank else 0
    if not isinstance(whole, int) or not isinstance(parts, int):
        return False
    return whole == parts or (parts > 0 and whole % parts == 0)


@op(kind="composite")
def rope(x, cos, sin):
    """Rotary position embedding: x * cos + rotate_half(x) * sin, over the last axis.

    x: [..., D]; cos, sin: broadcastable to x. rotate_half(x) is (-x[D/2:], x[:D/2]).
    Su et al., "RoFormer", 2021, eq. 34, in the half-split order of GPT-NeoX.
    """
    size = x.shape[-1]
    if not isinstance(size, int) or size % 2:
        raise TypeError(f"x is {x}: the last axis must be a known even number")
    for name, table in (("cos", cos), ("sin", sin)):
        aligned = (1,) * (x.rank - table.rank) + table.shape
        fits = len(aligned) == x.rank and all(t in (1, d) for t, d in zip(aligned, x.shape))
        if not fits or aligned[-1] != size or table.dtype != x.dtype:
            raise TypeError(f"{name} is {table}, x is {x}: must broadcast to x, last axis {size}")
    return x


@rope.set_decomposition
def _(b, x, cos, sin):
    half = x.shape[-1] // 2
    low = b.slice(x, axis=-1, start=0, stop=half)
    high = b.slice(x, axis=-1, start=half, stop=2 * half)
    return b.add(b.mul(x, cos), b.mul(b.concat(b.neg(high), low, axis=-1), sin))
