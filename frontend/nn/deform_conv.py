"""Convolution over windows whose elements are each moved by an offset of its own."""

from collections.abc import Sequence
from itertools import product

from ...ir.builder import Builder
from ...ir.dim import product as product_of
from ...ir.graph import Value
from ...ir.types import f32, f64, i64
from ..declined import Declined
from .grid_sample import sample
from .norm import by_channel

Ints = Sequence[int]


def deform_conv(
    b: Builder,
    x: Value,
    w: Value,
    offset: Value,
    mask: Value | None = None,
    bias: Value | None = None,
    *,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    offset_groups: int = 1,
) -> Value:
    """x: [N, C, *S], w: [O, C / groups, *K] -> [N, O, *S'], as `conv` of what lies at the offsets.

    offset: [N, G * K * axes, *S'], for the G offset groups of channels and each element of a
    window how far it is moved along each axis; between elements x is linear, outside 0. mask:
    [N, G * K, *S'], factors. padding: zeros before each axis. Zhu et al., "Deformable ConvNets v2",
    2019, eq. 1. Places are computed in float32 (float64 for float64).
    """
    batch, channels, *sizes = x.shape
    outputs, _, *kernel = w.shape
    space = offset.shape[2:]
    if not all(isinstance(size, int) for size in (channels, *w.shape)):
        raise Declined(f"a kernel of {w.type} over {x.type}: its sizes must be known")
    taps, axes, count = product_of(kernel), len(sizes), product_of(space)
    moved = offset_groups * taps
    wide = f64 if x.dtype == f64 else f32
    rows = (batch * offset_groups, taps * count)
    by_axis = b.reshape(b.cast(offset, dtype=wide), shape=(batch, moved, axes, *space))
    places = []
    for axis in range(axes):
        part = b.slice(by_axis, axis=2, start=axis, stop=axis + 1)
        part = b.reshape(part, shape=(batch, offset_groups, taps, *space))
        shape = [1] * axes
        shape[axis] = space[axis]
        start = b.iota(length=space[axis], start=-padding[axis], step=strides[axis], dtype=i64)
        within = [at[axis] * dilation[axis] for at in product(*map(range, kernel))]
        ones = [b.full(value=at, shape=(1,), dtype=i64) for at in within]
        apart = ones[0] if taps == 1 else b.concat(*ones, axis=0)
        regular = b.add(b.reshape(apart, shape=(taps, *[1] * axes)), b.reshape(start, shape=shape))
        places.append(b.reshape(b.add(b.cast(regular, dtype=wide), part), shape=rows))
    grouped = b.reshape(x, shape=(rows[0], channels // offset_groups, *sizes))
    columns = b.reshape(
        sample(b, grouped, places), shape=(rows[0], channels // offset_groups, taps, count)
    )
    if mask is not None:
        columns = b.mul(columns, b.reshape(mask, shape=(rows[0], 1, taps, count)))
    inner = channels // groups * taps
    columns = b.reshape(columns, shape=(batch, groups, inner, count))
    weights = b.reshape(w, shape=(1, groups, outputs // groups, inner))
    result = b.reshape(b.matmul(weights, columns), shape=(batch, outputs, *space))
    return result if bias is None else b.add(result, by_channel(b, bias, result))
