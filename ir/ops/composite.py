"""Composites over rows: recognized by passes, and taken apart by `decompose` where no kernel is."""

import numpy as np

from ..op import normalize_axis, op


def _row_weight(x, weight, what: str) -> None:
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise TypeError(f"{what} is {weight}, x is {x}: {what} must be {x.dtype}[{x.shape[-1]}]")


@op(kind="composite", is_whole=True)
def softmax(x, *, axis: int = -1):
    """exp(x - max(x)) / sum(exp(x - max(x))) along axis, in float32 inside.

    Kernels divide once a row and multiply an element, which is one rounding more: see
    docs/numerics.md.
    """
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
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


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
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + eps) * weight + bias


@layer_norm.set_decomposition
def _(b, x, weight, bias, *, eps):
    centered = b.sub(x, b.mean(x, axes=(-1,), keepdims=True))
    variance = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    scaled = b.mul(centered, b.rsqrt(b.add(variance, b.constant(eps, x.dtype))))
    return b.add(b.mul(scaled, weight), bias)


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
