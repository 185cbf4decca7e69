"""Convolution layers: padding, bias, and convolution the other way, in terms of the op `conv`."""

from collections.abc import Sequence

from ...ir.builder import Builder
from ...ir.dim import Dim, product
from ...ir.graph import Value
from ..declined import Declined
from .norm import by_channel
from .pad import padded, reversed_axis

Ints = Sequence[int]
Pairs = Sequence[tuple[int, int]]  # (before, after) for each spatial axis


def conv(
    b: Builder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    strides: Ints,
    padding: Pairs,
    dilation: Ints,
    groups: int = 1,
) -> Value:
    """x: [N, C, *S], w: [O, C / groups, *K], bias: [O] -> [N, O, *S'], 1 spatial axis or more.

    Zeros are added around x. Sums as those of the op `conv`; the bias is added to what they round
    to. Negative padding cuts x.
    """
    for axis, (before, after) in enumerate(padding, 2):
        x = padded(b, x, axis, before, after)
    result = b.conv(x, w, strides=tuple(strides), dilation=tuple(dilation), groups=groups)
    return result if bias is None else b.add(result, by_channel(b, bias, result))


def conv_transpose(
    b: Builder,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    strides: Ints,
    padding: Pairs,
    dilation: Ints,
    groups: int = 1,
    output_padding: Ints = (),
) -> Value:
    """The gradient of a convolution. x: [N, C, *S], w: [C, O / groups, *K] -> [N, O, *S'].

    S' = (S - 1) * stride + (K - 1) * dilation + 1 - padding + output_padding: what a convolution
    with the same attributes would have taken to give S. Results whose places leave the same rest
    by the strides are a convolution of x with a part of the kernel: all of these are made at once,
    as further channels. Refuses kernels whose sizes are not known.
    """
    spatial = x.type.rank - 2
    inputs, outputs = w.shape[:2]
    if not all(isinstance(size, int) for size in w.shape) or inputs % groups:
        raise Declined(f"a kernel of {w.type} in {groups} groups: its sizes must be known")
    apart, cuts, parted = [], [], []
    more = output_padding or (0,) * spatial
    for number, (step, dilated) in enumerate(zip(strides, dilation)):
        axis, (before, after) = 2 + number, padding[number]
        if step > 1:
            w, dilated = spread(b, w, axis, dilated), 1
        size = (w.shape[axis] - 1) * dilated + 1
        w = padded(b, w, axis, 0, -w.shape[axis] % step)
        apart.append(dilated)
        parted += [w.shape[axis] // step, step]
        # what is made lies over size rounded up to the strides
        whole = size if step == 1 else w.shape[axis]
        cuts.append((-before, size - whole - after + more[number]))
    firsts = range(3, 3 + 2 * spatial, 2)
    steps, taps = parted[1::2], parted[::2]
    width = outputs * product(steps)
    w = b.reshape(w, shape=(groups, inputs // groups, outputs, *parted))
    w = b.transpose(w, perm=(0, 2, *(axis + 1 for axis in firsts), 1, *firsts))
    w = b.reshape(w, shape=(groups * width, inputs // groups, *taps))
    for axis in range(2, w.type.rank):
        w = reversed_axis(b, w, axis)
    around = [((tap - 1) * d, (tap - 1) * d) for tap, d in zip(taps, apart)]
    ones = (1,) * spatial
    made = conv(b, x, w, strides=ones, padding=around, dilation=apart, groups=groups)
    batch, _, *counts = made.shape
    made = b.reshape(made, shape=(batch, groups * outputs, *steps, *counts))
    places = (axis for i in range(spatial) for axis in (2 + spatial + i, 2 + i))
    made = b.transpose(made, perm=(0, 1, *places))
    sizes = (count * step for count, step in zip(counts, steps))
    made = b.reshape(made, shape=(batch, groups * outputs, *sizes))
    for axis, (before, after) in enumerate(cuts, 2):
        made = padded(b, made, axis, before, after)
    return made if bias is None else b.add(made, by_channel(b, bias, made))


def spread(b: Builder, x: Value, axis: int, step: int) -> Value:
    """step - 1 zeros between neighbours along axis."""
    if step == 1:
        return x
    size: Dim = x.shape[axis]
    wide = b.reshape(x, shape=(*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wide = b.pad(wide, axis=axis + 1, before=0, after=step - 1)
    wide = b.reshape(wide, shape=(*x.shape[:axis], size * step, *x.shape[axis + 1 :]))
    return b.slice(wide, axis=axis, start=0, stop=(size - 1) * step + 1)
