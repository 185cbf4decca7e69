"""Convolution: products summed over windows."""

import numpy as np

from ..dim import product
from ..op import op
from ..types import f32
from .view import num_windows

Ints = tuple[int, ...]
TOGETHER = 32  # outputs of small groups that are made by one product


@op(kind="composite")
def conv(x, w, *, strides: Ints, dilation: Ints, groups: int = 1):
    """Cross-correlation. x: [N, C, *S], padded already; w: [O, C / groups, *K] -> [N, O, *S'].

    out[n, o, i..] = the sum over c and k.. of x[n, c, i * stride + k * dilation..] * w[o, c, k..],
    c over the channels of the group of o: group g has channels g * C / groups on, and outputs
    g * O / groups on. Sums as those of matmul.
    """
    spatial = x.rank - 2
    if spatial < 1 or w.rank != x.rank or x.dtype != w.dtype:
        raise TypeError(f"x is {x}, w is {w}: need [N, C, *S] and [O, C / groups, *K]")
    if len(strides) != spatial or len(dilation) != spatial:
        raise TypeError(f"strides {strides}, dilation {dilation}: need one for each axis of {x}")
    if any(not isinstance(d, int) for d in w.shape) or groups < 1 or w.shape[0] % groups:
        raise TypeError(f"w is {w}: needs known sizes, and {groups} groups of equal size")
    if x.shape[1] != w.shape[1] * groups:
        raise TypeError(f"x has {x.shape[1]} channels, w is {w} of {groups} groups")
    counts = []
    for size, count, step, apart in zip(x.shape[2:], w.shape[2:], strides, dilation):
        if count < 1 or step < 1 or apart < 1:
            raise TypeError(f"w is {w}, strides {strides}, dilation {dilation}: must be 1 or more")
        counts.append(num_windows(size, count, step, apart))
        if isinstance(counts[-1], int) and counts[-1] < 0:
            raise TypeError(f"a window of {count}, {apart} apart, is longer than {size} of {x}")
    return x.with_shape((x.shape[0], w.shape[0], *counts))


@conv.set_reference
def _(x, w, *, strides, dilation, groups):
    batch, channels, *sizes = x.shape
    outputs, _, *kernel = w.shape
    counts = list(map(num_windows, sizes, kernel, strides, dilation))
    x = x.reshape(batch, groups, channels // groups, *sizes)
    w = w.reshape(groups, outputs // groups, *w.shape[1:])
    total = np.zeros((batch, groups, outputs // groups, *counts), x.dtype)
    for place in np.ndindex(*kernel):
        ends = zip(place, counts, strides, dilation)
        cut = (slice(k * d, k * d + (n - 1) * s + 1 if n else 0, s) for k, n, s, d in ends)
        part = x[(..., *cut)].reshape(batch, groups, channels // groups, product(counts))
        sums = w[(..., *place)] @ part
        total = total + sums.reshape(total.shape)
    return total.reshape(batch, outputs, *counts)


@conv.set_decomposition
def _(b, x, w, *, strides, dilation, groups):
    """Channels last, where the elements of a window that lie side by side are a run of channels."""
    outputs, channels, *kernel = w.shape
    rank, spatial = x.type.rank, range(1, x.type.rank - 1)

    def windows(x):
        """[N, *S, ..] -> [N, *S', .., *K]."""
        for axis, size, step, apart in zip(spatial, kernel, strides, dilation):
            x = b.window(x, axis=axis, size=size, step=step, dilation=apart)
        return x

    x = b.transpose(x, perm=(0, *range(2, rank), 1))  # [N, *S, C]
    if channels == 1 and groups > 1:
        result = _depthwise(b, windows(x), w, groups)
    else:
        w, groups = _block_diagonal(b, b.transpose(w, perm=(0, *range(2, rank), 1)), groups)
        each, width = w.shape[1:]
        x = windows(b.reshape(x, shape=(*x.shape[:-1], groups, x.shape[-1] // groups)))
        counts, inside = x.shape[: rank - 1], range(rank + 1, x.type.rank)
        if groups == 1:  # [N, *S', 1, C, *K] -> [N, *S', *K * C]
            x = b.transpose(x, perm=(*range(rank), *inside, rank))
            x, w = b.reshape(x, shape=(*counts, width)), b.reshape(w, shape=(each, width))
            result = b.matmul(x, w, transpose_w=True)
        else:  # -> [groups, N * S', *K * C]
            x = b.transpose(x, perm=(rank - 1, *range(rank - 1), *inside, rank))
            x = b.reshape(x, shape=(groups, product(counts), width))
            result = b.reshape(b.matmul(x, w, transpose_w=True), shape=(groups, *counts, each))
            result = b.transpose(result, perm=(*range(1, rank), 0, rank))
            result = b.reshape(result, shape=(*counts, outputs))
    return b.transpose(result, perm=(0, rank - 1, *spatial))


def _block_diagonal(b, w, groups):
    """w: [O, *K, C] of so many groups -> [groups, outputs, K * C] of fewer, and how many.

    A product makes many outputs at once, so small groups go together, with zeros between them.
    """
    outputs, *kernel, channels = w.shape
    each, places, merged = outputs // groups, product(kernel), 1
    while groups % (2 * merged) == 0 and each * 2 * merged <= TOGETHER:
        merged *= 2
    if merged > 1:
        w = b.reshape(w, shape=(groups // merged, merged, each, places, 1, channels))
        own = b.iota(length=merged)
        own = b.eq(b.reshape(own, shape=(merged, 1, 1, 1, 1)), b.reshape(own, shape=(merged, 1)))
        w = b.where(own, w, b.constant(0, w.dtype))
    groups //= merged
    shape = (groups, each * merged, places * merged * channels)
    return b.reshape(w, shape=shape), groups


def _depthwise(b, x, w, groups):
    """Each channel alone: x [N, *S', C, *K], w [C * m, 1, *K] -> [N, *S', C * m]."""
    outputs, _, *kernel = w.shape
    each, rank, dtype = outputs // groups, w.type.rank, x.dtype
    wide = f32 if dtype.is_float and dtype.bits < 32 else dtype
    inside = range(rank, x.type.rank)
    x = b.cast(b.transpose(x, perm=(*range(rank - 1), *inside, rank - 1)), dtype=wide)
    # [*K, C * m]: neighbours along the last axis of what is summed lie side by side
    w = b.reshape(w, shape=(outputs, *kernel))
    w = b.cast(b.transpose(w, perm=(*range(1, rank - 1), 0)), dtype=wide)
    if each > 1:
        repeated = (*x.shape, each)
        x = b.broadcast_to(b.reshape(x, shape=(*x.shape, 1)), shape=repeated)
        x = b.reshape(x, shape=(*repeated[:-2], outputs))
    sums = b.sum(b.mul(x, w), axes=tuple(range(rank - 1, rank - 1 + len(kernel))))
    return b.cast(sums, dtype=dtype)
