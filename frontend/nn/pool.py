"""Pooling: reductions over windows, whose padding is never in memory.

x: [N, C, *S] throughout (any number of axes before the spatial ones), `kernel` one size for each
spatial axis. Sums accumulate in float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...ir.builder import Builder
from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ...ir.graph import Value
from ...ir.ops.view import window_span
from ...ir.types import DType, i64
from ..declined import Declined
from .division import truncated_div
from .pad import padded

Ints = Sequence[int]


@dataclass(frozen=True)
class Windows:
    """Where the windows of a pooling lie. `padding`: (before, after) for each spatial axis.

    With `ceil_mode` a last window that begins inside x, or in the padding before it, may end past
    the padding after it. `facts` are those of the dims of x.
    """

    facts: Facts
    kernel: Ints
    strides: Ints
    padding: Sequence[tuple[int, int]]
    dilation: Ints
    ceil_mode: bool = False

    def axes(self, x: Value) -> list[int]:
        """The spatial axes of x."""
        return list(range(x.type.rank - len(self.kernel), x.type.rank))

    def overhang(self, number: int, size: Dim) -> Dim:
        """How far the last window along a spatial axis of `size` ends past the padding."""
        (before, after), step = self.padding[number], self.strides[number]
        span = window_span(self.kernel[number], self.dilation[number])
        if not self.ceil_mode:
            return 0
        total = size + before + after
        count = self.facts.minimum(ceildiv(total - span, step) + 1, ceildiv(size + before, step))
        return self.facts.maximum((count - 1) * step + span - total, 0)

    def of(self, b: Builder, x: Value, fill: float | int | bool) -> Value:
        """x: [.., *S] -> [.., *S', *kernel], `fill` around x."""
        axes = self.axes(x)
        for number, axis in enumerate(axes):
            before, after = self.padding[number]
            after = after + self.overhang(number, x.shape[axis])
            x = padded(b, x, axis, before, after, fill)
        for number, axis in enumerate(axes):
            x = b.window(
                x,
                axis=axis,
                size=self.kernel[number],
                step=self.strides[number],
                dilation=self.dilation[number],
            )
        return x


def max_pool(b: Builder, x: Value, windows: Windows) -> Value:
    """The largest element of each window; NaN wins."""
    inside = windows.of(b, x, lowest(x.dtype))
    return b.max(inside, axes=_last(windows))


def max_pool_places(b: Builder, x: Value, windows: Windows) -> Value:
    """Where the largest element of each window stands (i64): its place among all of *S in a row.

    The first of equals; of a window without a number above minus infinity, its first place in x.
    """
    inside = windows.of(b, x, lowest(x.dtype))
    count = len(windows.kernel)
    counts = inside.shape[: inside.type.rank - count]
    size = product(windows.kernel)
    best = b.argmax(b.reshape(inside, shape=(*counts, size)), axis=-1)
    place = None
    for number, axis in enumerate(windows.axes(x)):
        size //= windows.kernel[number]
        within = b.floordiv(best, b.constant(size, i64))
        best = b.mod(best, b.constant(size, i64))
        start = _starts(b, windows, number, counts[axis])
        start = b.reshape(start, shape=(counts[axis], *[1] * (count - 1 - number)))
        at = b.add(start, b.mul(within, b.constant(windows.dilation[number], i64)))
        at = b.maximum(at, b.constant(0, i64))  # before x there is nothing to point at
        row = b.dim_value(value=x.shape[axis], dtype=i64)
        place = at if place is None else b.add(b.mul(place, row), at)
    assert place is not None, "a pooling has an axis"
    return place


def avg_pool(
    b: Builder, x: Value, windows: Windows, *, counts_padding: bool, divisor: int | None = None
) -> Value:
    """The mean of each window: of what of it lies in x or (`counts_padding`) in x and its padding.

    What `ceil_mode` lets hang over never counts. `divisor` is divided by instead, if given. Means
    of integers are rounded towards zero.
    """
    axes = _last(windows)
    around = any(pair != (0, 0) for pair in windows.padding)
    if divisor is None and not windows.ceil_mode and (counts_padding or not around):
        if x.dtype.is_float:
            return b.mean(windows.of(b, x, 0), axes=axes)
        divisor = math.prod(windows.kernel)
    total = b.sum(windows.of(b, x, 0), axes=axes)
    ratio = b.div if x.dtype.is_float else partial(truncated_div, b)
    if divisor is not None:
        return ratio(total, b.constant(divisor, x.dtype))
    held: Value | None = None
    for number, axis in enumerate(windows.axes(x)):
        before, after = windows.padding[number] if counts_padding else (0, 0)
        low, high = b.constant(-before, i64), b.dim_value(value=x.shape[axis] + after, dtype=i64)
        start = _starts(b, windows, number, total.shape[axis])
        apart = windows.dilation[number]
        places = b.add(
            b.reshape(start, shape=(*start.shape, 1)),
            b.iota(length=windows.kernel[number], step=apart),
        )
        inside = b.and_(b.ge(places, low), b.lt(places, high))
        count = b.sum(b.cast(inside, dtype=x.dtype), axes=(-1,))
        count = b.reshape(count, shape=(*count.shape, *[1] * (len(axes) - 1 - number)))
        held = count if held is None else b.mul(held, count)
    return ratio(total, held)


def lp_pool(b: Builder, x: Value, windows: Windows, p: float) -> Value:
    """The p-norm of each window: (the sum of abs(x)^p)^(1/p). Elements are powers in x's dtype."""
    exponent = b.constant(float(p), x.dtype)
    powers = b.mul(x, x) if p == 2 else b.abs(x) if p == 1 else b.pow(b.abs(x), exponent)
    total = b.sum(windows.of(b, powers, 0), axes=_last(windows))
    if p in (1, 2):
        return total if p == 1 else b.sqrt(total)
    return b.pow(total, b.constant(1 / p, x.dtype))


def adaptive_pool(b: Builder, x: Value, sizes: Sequence[Dim], *, largest: bool) -> Value:
    """Mean or largest of the parts into which each spatial axis is cut. -> [.., *sizes].

    Part i of n of an axis of S is [floor(i * S / n), ceil((i + 1) * S / n)): parts may overlap.
    Refuses parts of sizes that are not known, unless there is one for the whole axis.
    """
    axes = range(x.type.rank - len(sizes), x.type.rank)
    whole = tuple(axis for axis, n in zip(axes, sizes) if n == 1)
    if whole:
        x = (b.max if largest else b.mean)(x, axes=whole, keepdims=True)
    for axis, count in zip(axes, sizes):
        size = x.shape[axis]
        if count not in (1, size):
            x = _parts(b, x, axis, size, count, largest)
    return x


def adaptive_max_places(b: Builder, x: Value, sizes: Sequence[Dim]) -> Value:
    """Where the largest element of each part stands, as of `max_pool_places`."""
    count, first_axis = len(sizes), x.type.rank - len(sizes)
    parts, space = [], x.shape[first_axis:]
    for number, (size, many) in enumerate(zip(space, sizes)):
        parts.append(_Parts.of(b, size, many))
        axis = first_axis + 2 * number  # each axis before has become two
        x = parts[-1].read(b, x, axis, lowest(x.dtype))
    pairs = range(first_axis, x.type.rank, 2)
    inside = (axis + 1 for axis in pairs)
    x = b.transpose(x, perm=(*range(first_axis), *pairs, *inside))
    kept = x.shape[: first_axis + count]
    best = b.argmax(b.reshape(x, shape=(*kept, product(x.shape[first_axis + count :]))), axis=-1)
    place, width = None, product(part.longest for part in parts)
    for number, part in enumerate(parts):
        width //= part.longest
        within = b.floordiv(best, b.constant(width, i64))
        best = b.mod(best, b.constant(width, i64))
        start = b.reshape(part.first, shape=(sizes[number], *[1] * (count - 1 - number)))
        at = b.add(start, within)
        row = b.constant(space[number], i64)
        place = at if place is None else b.add(b.mul(place, row), at)
    assert place is not None, "a pooling has an axis"
    return place


def lowest(dtype: DType) -> float | int | bool:
    """What is below every other element of the dtype, or equal to the least."""
    if dtype.is_float:
        return float("-inf")
    return dtype.extremes[0] if dtype.is_integer else False


def _last(windows: Windows) -> tuple[int, ...]:
    return tuple(range(-len(windows.kernel), 0))


def _starts(b: Builder, windows: Windows, number: int, count: Dim) -> Value:
    """Where the windows along a spatial axis begin, in x."""
    before, _ = windows.padding[number]
    return b.iota(length=count, start=-before, step=windows.strides[number])


def _parts(b: Builder, x: Value, axis: int, size: Dim, count: Dim, largest: bool) -> Value:
    if isinstance(size, int) and isinstance(count, int) and count and size % count == 0:
        shape = (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])
        reduce = b.max if largest else b.mean
        return reduce(b.reshape(x, shape=shape), axes=(axis + 1,))
    parts = _Parts.of(b, size, count)
    read = parts.read(b, x, axis, lowest(x.dtype) if largest else 0)
    if largest:
        return b.max(read, axes=(axis + 1,))
    total = b.sum(read, axes=(axis + 1,))
    held = b.cast(parts.held, dtype=x.dtype)
    return b.div(total, b.reshape(held, shape=(count, *[1] * (x.type.rank - axis - 1))))


@dataclass(frozen=True)
class _Parts:
    """The parts of an axis: where each begins, how many elements it has, how many at most."""

    first: Value
    held: Value
    longest: int
    size: int

    @classmethod
    def of(cls, b: Builder, size: Dim, count: Dim) -> "_Parts":
        """Those of an axis of `size` in `count` parts."""
        if not isinstance(size, int) or not isinstance(count, int):
            raise Declined(f"an axis of {size} cut in {count} parts: must be known numbers")
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        longest = max((end - start for start, end in ends), default=0)
        # the same bounds as numbers of i
        i, parts = b.iota(length=count), b.constant(count, i64)
        first = b.floordiv(b.mul(i, b.constant(size, i64)), parts)
        last = b.mul(b.add(i, b.constant(1, i64)), b.constant(size, i64))
        last = b.floordiv(b.add(last, b.constant(count - 1, i64)), parts)
        return cls(first, b.sub(last, first), longest, size)

    def read(self, b: Builder, x: Value, axis: int, fill: float | int | bool) -> Value:
        """[.., size, ..] -> [.., count, longest, ..], `fill` behind the end of a part."""
        column = (*self.first.shape, 1)
        within = b.iota(length=self.longest)
        places = b.add(b.reshape(self.first, shape=column), within)
        places = b.minimum(places, b.constant(self.size - 1, i64))
        inside = b.lt(within, b.reshape(self.held, shape=column))
        inside = b.reshape(inside, shape=(*inside.shape, *[1] * (x.type.rank - axis - 1)))
        read = b.gather(x, places, axis=axis)
        return b.where(inside, read, b.constant(fill, x.dtype))
