"""Normalizations: over last axes; by channel, by group and by neighbours of x: [N, C, *S]."""

from ...ir.builder import Builder
from ...ir.dim import product
from ...ir.graph import Value
from ...ir.types import DType, f32, f64
from ..declined import Declined
from .pad import padded


def layer_norm(
    b: Builder, x: Value, first: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """(x - mean) / sqrt(variance + eps) * weight + bias, over all axes from `first` on.

    weight and bias broadcast to those axes; None is 1 and 0. Sums accumulate in float32.
    """
    rows = _rows(b, x, first)
    scale, shift = _of_row(b, weight, x, first, 1.0), _of_row(b, bias, x, first, 0.0)
    return b.reshape(b.layer_norm(rows, scale, shift, eps=eps), shape=x.shape)


def rms_norm(b: Builder, x: Value, first: int, weight: Value | None, eps: float) -> Value:
    """x / sqrt(mean of x^2 + eps) * weight, as `layer_norm` is over axes."""
    y = b.rms_norm(_rows(b, x, first), _of_row(b, weight, x, first, 1.0), eps=eps)
    return b.reshape(y, shape=x.shape)


def row_statistics(b: Builder, x: Value, first: int, eps: float) -> tuple[Value, Value]:
    """The mean over all axes from `first` on, and 1 / sqrt(variance + eps): those axes of size 1.

    In float32, or float64 where x is.
    """
    wide = f64 if x.dtype == f64 else f32
    rows = _cast(b, _rows(b, x, first), wide)
    mean = b.mean(rows, axes=(-1,), keepdims=True)
    centered = b.sub(rows, mean)
    variance = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    inverse = b.rsqrt(b.add(variance, b.constant(eps, wide)))
    shape = (*x.shape[:first], *(1,) * (x.type.rank - first))
    return b.reshape(mean, shape=shape), b.reshape(inverse, shape=shape)


def _rows(b: Builder, x: Value, first: int) -> Value:
    return b.reshape(x, shape=(*x.shape[:first], product(x.shape[first:])))


def _of_row(b: Builder, v: Value | None, x: Value, first: int, otherwise: float) -> Value:
    """A weight that broadcasts to the normalized axes, as one row."""
    normalized = x.shape[first:]
    width = product(normalized)
    if v is None:
        return b.full(value=otherwise, shape=(width,), dtype=x.dtype)
    extra = max(v.type.rank - len(normalized), 0)
    if any(size != 1 for size in v.shape[:extra]):
        raise Declined(f"a weight of {v.type} for the axes {list(normalized)}")
    v = b.reshape(_cast(b, v, x.dtype), shape=v.shape[extra:])
    return b.reshape(b.broadcast_to(v, shape=normalized), shape=(width,))


def batch_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    eps: float,
) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias by channel, by the statistics that are given.

    As x * scale + shift, in float32 (float64 where an operand is), rounded once to the dtype of x:
    scale and shift depend on weights alone. Ioffe and Szegedy, "Batch normalization", 2015, alg. 2.
    """
    wide = f64 if f64 in (x.dtype, mean.dtype) else f32
    scale = b.rsqrt(b.add(_cast(b, var, wide), b.constant(eps, wide)))
    if weight is not None:
        scale = b.mul(scale, _cast(b, weight, wide))
    shift = b.neg(b.mul(_cast(b, mean, wide), scale))
    if bias is not None:
        shift = b.add(_cast(b, bias, wide), shift)
    scaled = b.mul(_cast(b, x, wide), by_channel(b, scale, x))
    return _cast(b, b.add(scaled, by_channel(b, shift, x)), x.dtype)


def group_norm(
    b: Builder, x: Value, groups: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """x less its mean, over its standard deviation, of each group of channels; then by channel.

    Sums accumulate in float32. Wu and He, "Group normalization", 2018. With a group for each
    channel it is instance normalization.
    """
    batch, channels, *space = x.shape
    width = product((channels, *space)) // groups
    rows = b.reshape(x, shape=(batch, groups, width))
    ones = b.full(value=1.0, shape=(width,), dtype=x.dtype)
    zeros = b.full(value=0.0, shape=(width,), dtype=x.dtype)
    # each group is one row; the affine part is by channel, so it comes after
    result = b.reshape(b.layer_norm(rows, ones, zeros, eps=eps), shape=x.shape)
    if weight is not None:
        result = b.mul(result, by_channel(b, weight, x))
    return result if bias is None else b.add(result, by_channel(b, bias, x))


def lp_normalized(b: Builder, x: Value, axis: int, p: int) -> Value:
    """X over its p-norm (p 1 or 2) along axis; 0 where that is 0."""
    powers = b.abs(x) if p == 1 else b.mul(x, x)
    norm = b.sum(powers, axes=(axis,), keepdims=True)
    norm = norm if p == 1 else b.sqrt(norm)
    zero = b.constant(0.0, x.dtype)
    return b.where(b.eq(norm, zero), zero, b.div(x, norm))


def local_response_norm(
    b: Builder, x: Value, size: int, *, alpha: float, beta: float, bias: float
) -> Value:
    """x / (bias + alpha / size * the sum of x^2 over `size` neighbouring channels)^beta.

    Of an even number one more lies behind. Krizhevsky et al., "ImageNet classification", 2012,
    section 3.3.
    """
    around = padded(b, b.mul(x, x), 1, (size - 1) // 2, size - 1 - (size - 1) // 2, 0)
    total = b.sum(b.window(around, axis=1, size=size), axes=(-1,))
    base = b.add(b.mul(total, b.constant(alpha / size, x.dtype)), b.constant(bias, x.dtype))
    return b.div(x, b.pow(base, b.constant(beta, x.dtype)))


def by_channel(b: Builder, v: Value, x: Value) -> Value:
    """v: [C] -> [C, 1, ..], to go with x."""
    return b.reshape(v, shape=(v.shape[0], *[1] * (x.type.rank - 2)))


def _cast(b: Builder, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else b.cast(x, dtype=dtype)
