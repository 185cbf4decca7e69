"""Views: renamings of indices. No storage is meant; codegen decides what is copied."""

import numpy as np

from ..dim import Dim, product
from ..index_map import Choose, Fill, Mapped, Read
from ..indexing import broadcast_index, delinearize, linearize, replaced
from ..op import broadcast_shapes, normalize_axis, op
from ..types import Shape


@op(kind="view")
def reshape(x, *, shape: Shape):
    """The same elements in row-major order under another shape."""
    if product(shape) != x.numel:
        wanted = ", ".join(map(str, shape))
        raise TypeError(f"x is {x} with {x.numel} elements; [{wanted}] has {product(shape)}")
    return x.with_shape(shape)


@reshape.set_reference
def _(x, *, shape):
    return x.reshape(shape)


@reshape.set_index_map
def _(at, index, x, *, shape):
    return Read(0, _regrouped(index, shape, x.shape, at.facts))


@reshape.set_inverse
def _(facts, index, x, *, shape):
    return _regrouped(index, x.shape, shape, facts)


def _regrouped(index, shape, to, facts):
    """The index under another shape; axes in front and behind that both shapes have stay apart."""
    least = min(len(shape), len(to))
    front = next((i for i in range(least) if shape[i] != to[i]), least)
    back = next((i for i in range(least - front) if shape[-1 - i] != to[-1 - i]), least - front)
    inner = slice(front, len(shape) - back)
    offset = linearize(index[inner], shape[inner])
    between = delinearize(offset, to[front : len(to) - back], facts)
    return (*index[:front], *between, *index[inner.stop :])


@op(kind="view")
def transpose(x, *, perm: tuple[int, ...]):
    """Axes permuted: axis i of the result is axis perm[i] of x."""
    if sorted(perm) != list(range(x.rank)):
        raise TypeError(f"perm {list(perm)} is not a permutation of the {x.rank} axes of {x}")
    return x.with_shape(x.shape[axis] for axis in perm)


@transpose.set_reference
def _(x, *, perm):
    return x.transpose(perm)


@transpose.set_index_map
def _(at, index, x, *, perm):
    return Read(0, tuple(index[perm.index(axis)] for axis in range(x.rank)))


@transpose.set_inverse
def _(facts, index, x, *, perm):
    return tuple(index[axis] for axis in perm)


@op(kind="view")
def broadcast_to(x, *, shape: Shape):
    """x repeated along axes of size 1 (and new leading ones) up to shape."""
    if len(shape) < x.rank or broadcast_shapes(x.shape, shape) != tuple(shape):
        raise TypeError(f"{x} does not broadcast to [{', '.join(map(str, shape))}]")
    return x.with_shape(shape)


@broadcast_to.set_reference
def _(x, *, shape):
    return np.broadcast_to(x, shape)


@broadcast_to.set_index_map
def _(at, index, x, *, shape):
    return Read(0, broadcast_index(index, x))


@op(kind="view")
def slice_(x, *, axis: int, start: Dim, stop: Dim, step: int = 1):
    """x[start:stop:step] along axis; 0 <= start <= stop <= size and step >= 1 (verified)."""
    axis = normalize_axis(axis, x.rank)
    if step < 1:
        raise TypeError(f"step is {step}: must be at least 1")
    length = (stop - start + (step - 1)) // step
    if isinstance(length, int) and length < 0:
        raise TypeError(f"start {start} is after stop {stop}")
    return x.with_shape(replaced(x.shape, axis, length))


@slice_.set_reference
def _(x, *, axis, start, stop, step):
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


@slice_.set_index_map
def _(at, index, x, *, axis, start, stop, step):
    axis = normalize_axis(axis, x.rank)
    return Read(0, replaced(index, axis, index[axis] * step + start))


@op(kind="view")
def concat(*parts, axis: int):
    """Parts joined along axis."""
    first = parts[0]
    axis = normalize_axis(axis, first.rank)
    total: Dim = 0
    for part in parts:
        if part.dtype != first.dtype or part.rank != first.rank:
            raise TypeError(f"parts differ: {first} and {part}")
        for i, (a, b) in enumerate(zip(first.shape, part.shape)):
            if i != axis and a != b:
                raise TypeError(f"parts differ outside axis {axis}: {first} and {part}")
        total = total + part.shape[axis]
    return first.with_shape(replaced(first.shape, axis, total))


@concat.set_reference
def _(*parts, axis):
    return np.concatenate(parts, axis)


@concat.set_index_map
def _(at, index, *parts, axis):
    axis = normalize_axis(axis, parts[0].rank)
    end = at.result.shape[axis]
    result: Mapped | None = None
    for number in reversed(range(len(parts))):
        start = end - parts[number].shape[axis]
        part = Read(number, replaced(index, axis, index[axis] - start))
        if result is None or at.facts.proved_lt(index[axis], end):
            result = part
        elif not at.facts.proved_le(end, index[axis]):
            result = Choose(index[axis], end, part, result)
        end = start
    return result


@op(kind="view", fills="value")
def pad(x, *, axis: int, before: Dim, after: Dim, value: float | int | bool = 0):
    """x with `before` and `after` elements of `value` added along axis."""
    axis = normalize_axis(axis, x.rank)
    return x.with_shape(replaced(x.shape, axis, x.shape[axis] + before + after))


@pad.set_reference
def _(x, *, axis, before, after, value):
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return np.pad(x, widths, constant_values=value)


@pad.set_index_map
def _(at, index, x, *, axis, before, after, value):
    axis = normalize_axis(axis, x.rank)
    place, fill = index[axis], Fill(value)
    inside = Read(0, replaced(index, axis, place - before))
    up_to_end = Choose(place, before + x.shape[axis], inside, fill)
    return up_to_end if before == 0 else Choose(place, before, fill, up_to_end)


@op(kind="view")
def window(x, *, axis: int, size: int, step: int = 1, dilation: int = 1):
    """Windows along axis, one every `step`, each of `size` elements `dilation` apart, in a new last
    axis: out[.., i, .., j] = x[.., i * step + j * dilation, ..]. What convolution and pooling read.
    """
    axis = normalize_axis(axis, x.rank)
    if size < 0 or step < 1 or dilation < 1:
        raise TypeError(f"size {size}, step {step}, dilation {dilation}: must be 0, 1, 1 or more")
    count = num_windows(x.shape[axis], size, step, dilation)
    if isinstance(count, int) and count < 0:
        raise TypeError(f"a window of {size}, {dilation} apart, is longer than axis {axis} of {x}")
    return x.with_shape((*replaced(x.shape, axis, count), size))


def window_span(size: int, dilation: int) -> int:
    """From the first element of a window to past its last."""
    return (size - 1) * dilation + 1 if size else 0


def num_windows(length: Dim, size: int, step: int, dilation: int) -> Dim:
    """How many windows lie in an axis of `length`: 0 or less where none fits."""
    return (length - window_span(size, dilation)) // step + 1


@window.set_reference
def _(x, *, axis, size, step, dilation):
    starts = np.arange(0, x.shape[axis] - window_span(size, dilation) + 1, step)
    places = starts[:, None] + dilation * np.arange(size)
    return np.moveaxis(np.take(x, places, axis), axis % x.ndim + 1, -1)


@window.set_index_map
def _(at, index, x, *, axis, size, step, dilation):
    axis = normalize_axis(axis, x.rank)
    *kept, inside = index
    return Read(0, replaced(kept, axis, kept[axis] * step + inside * dilation))
