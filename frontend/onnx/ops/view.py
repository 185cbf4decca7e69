"""Operators that rename indices: shapes, axes, slices, joins, padding; and what makes tensors."""

import math
from collections.abc import Sequence

from ....ir import types
from ....ir.dim import Dim, Expr, ceildiv, divide_exactly, floordiv, maximum, minimum, product
from ....ir.graph import Value
from ....ir.op import broadcast_shapes
from ....ir.types import Shape
from ...nn.pad import extended, padded, part, pieces
from ..known import Known
from ..operators import Call, Declined, onnx_op
from ..tensors import dtype_of_element

LAST = 2**31 - 1  # from here on an end means "to the end", as exporters write it


# ---- shapes --------------------------------------------------------------------------------


@onnx_op("Reshape", since=5)
def _reshape(call: Call, x: Value, shape: Value, *, allowzero: bool = False) -> Value:
    return reshaped(call, x, call.sizes(shape), copies=not allowzero)


@onnx_op("Reshape")
def _reshape_1(call: Call, x: Value, *, shape: tuple[int, ...]) -> Value:
    return reshaped(call, x, shape, copies=True)


def reshaped(call: Call, x: Value, wanted: Sequence[Dim], *, copies: bool) -> Value:
    """X under a shape in which -1 is what is left; with `copies` 0 is the size of x there."""
    shape = [x.shape[i] if copies and dim == 0 else dim for i, dim in enumerate(wanted)]
    if -1 in shape:
        others = product(dim for dim in shape if dim != -1)
        if others == 0 or shape.count(-1) > 1:
            raise ValueError(f"the shape {list(wanted)} leaves a size open")
        rest = divide_exactly(x.type.numel, others)
        shape[shape.index(-1)] = floordiv(x.type.numel, others) if rest is None else rest
    return call.reshape(x, tuple(shape))


@onnx_op("Flatten")
def _flatten(call: Call, x: Value, *, axis: int = 1) -> Value:
    at = axis + x.type.rank if axis < 0 else axis
    if not 0 <= at <= x.type.rank:
        raise ValueError(f"axis {axis} of {x.type}")
    return call.reshape(x, (product(x.shape[:at]), product(x.shape[at:])))


@onnx_op("Squeeze")
def _squeeze(
    call: Call, x: Value, named: Value | None = None, *, axes: tuple[int, ...] | None = None
) -> Value:
    chosen = call.ints(axes if named is None else named)
    if chosen is None:
        unknown = [dim for dim in x.shape if isinstance(dim, Expr)]
        if not all(call.facts.proved_ne(dim, 1) for dim in unknown):
            raise Declined(f"squeeze of {x.type}, of which an axis may be 1 or not")
        chosen = [axis for axis, dim in enumerate(x.shape) if dim == 1]
    gone = call.axes(chosen, x.type.rank)
    if any(isinstance(x.shape[axis], int) and x.shape[axis] != 1 for axis in gone):
        raise ValueError(f"axes {list(gone)} of {x.type} are not 1")
    return call.reshape(x, tuple(dim for axis, dim in enumerate(x.shape) if axis not in gone))


@onnx_op("Unsqueeze")
def _unsqueeze(
    call: Call, x: Value, named: Value | None = None, *, axes: tuple[int, ...] = ()
) -> Value:
    chosen = call.ints(axes if named is None else named) or ()
    new = call.axes(chosen, x.type.rank + len(chosen))
    left = iter(x.shape)
    shape = [1 if axis in new else next(left) for axis in range(x.type.rank + len(new))]
    return call.reshape(x, tuple(shape))


@onnx_op("Transpose")
def _transpose(call: Call, x: Value, *, perm: tuple[int, ...] | None = None) -> Value:
    return call.transpose(x, range(x.type.rank)[::-1] if perm is None else perm)


@onnx_op("Expand")
def _expand(call: Call, x: Value, shape: Value) -> Value:
    return call.broadcast(x, broadcast_shapes(x.shape, call.sizes(shape)))


@onnx_op("Tile", since=6)
def _tile(call: Call, x: Value, repeats: Value) -> Value:
    return tiled(call, x, call.sizes(repeats))


def tiled(call: Call, x: Value, counts: Sequence[Dim]) -> Value:
    """X so often along each axis: [n] r times is [r, n] flattened."""
    if len(counts) != x.type.rank:
        raise ValueError(f"{len(counts)} counts for {x.type}")
    if all(count == 1 for count in counts):
        return x
    spread = tuple(d for size in x.shape for d in (1, size))
    wide = tuple(d for count, size in zip(counts, x.shape) for d in (count, size))
    shape = tuple(count * size for count, size in zip(counts, x.shape))
    return call.reshape(call.broadcast(call.reshape(x, spread), wide), shape)


# ---- parts and joins -----------------------------------------------------------------------


def _inside(call: Call, place: Dim, low: Dim, high: Dim) -> Dim:
    """A place held between two others."""
    facts = call.facts
    if not facts.proved_le(low, place):
        place = low if facts.proved_le(place, low) else maximum(place, low)
    if facts.proved_le(place, high):
        return place
    return high if facts.proved_le(high, place) else minimum(place, high)


def _from_front(call: Call, place: Dim, size: Dim) -> Dim:
    """A place counted from the end where it is negative."""
    if isinstance(place, int):
        return place + size if place < 0 else size if place >= LAST else place
    if call.facts.proved_lt(place, 0):
        return place + size
    if call.facts.proved_le(0, place):
        return place
    raise Declined(f"a slice to {place}, which may be negative or not")


def sliced(call: Call, x: Value, axis: int, start: Dim, stop: Dim, step: int) -> Value:
    """x[start:stop:step] along axis, as ONNX has it: places are held inside the axis."""
    size = x.shape[axis]
    if step == 0:
        raise ValueError("a step of 0")
    if step > 0:
        first = _inside(call, _from_front(call, start, size), 0, size)
        last = _inside(call, _from_front(call, stop, size), 0, size)
        if not call.facts.proved_le(first, last):
            first = last if call.facts.proved_le(last, first) else minimum(first, last)
        return part(call.b, x, axis, first, last, step)
    if isinstance(stop, int) and isinstance(size, int) and stop < -size:
        stop = -size - 1
    before = isinstance(stop, int) and stop <= -LAST
    first = _inside(call, _from_front(call, start, size), -1, size - 1)
    last = -1 if before else _inside(call, _from_front(call, stop, size), -1, size - 1)
    count = ceildiv(first - last, -step)
    if not call.facts.proved_le(0, count):
        count = maximum(count, 0)
    places = call.b.iota(length=count, start=first, step=step, dtype=types.i64)
    return call.b.gather(x, places, axis=axis)


@onnx_op("Slice", since=10)
def _slice(
    call: Call,
    x: Value,
    starts: Value,
    ends: Value,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    first, last = call.sizes(starts), call.sizes(ends)
    chosen = range(len(first)) if axes is None else call.ints(axes) or ()
    by = [1] * len(first) if steps is None else call.ints(steps) or ()
    return _slices(call, x, first, last, chosen, by)


@onnx_op("Slice")
def _slice_1(
    call: Call,
    x: Value,
    *,
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    axes: tuple[int, ...] | None = None,
) -> Value:
    chosen = range(len(starts)) if axes is None else axes
    return _slices(call, x, starts, ends, chosen, [1] * len(starts))


def _slices(
    call: Call,
    x: Value,
    starts: Sequence[Dim],
    ends: Sequence[Dim],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    axes = call.axes(axes, x.type.rank)
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        x = sliced(call, x, axis, start, stop, step)
    return x


@onnx_op("Split", since=13)
def _split(
    call: Call,
    x: Value,
    sizes: Value | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> tuple[Value, ...]:
    return _parts(call, x, axis, None if sizes is None else call.sizes(sizes), num_outputs)


@onnx_op("Split")
def _split_1(
    call: Call,
    x: Value,
    sizes: Value | None = None,
    *,
    axis: int = 0,
    split: tuple[int, ...] | None = None,
) -> tuple[Value, ...]:
    return _parts(call, x, axis, split if sizes is None else call.sizes(sizes))


def _parts(
    call: Call, x: Value, axis: int, sizes: Sequence[Dim] | None, count: int | None = None
) -> tuple[Value, ...]:
    axis = call.axis(axis, x)
    size = x.shape[axis]
    if sizes is None:
        if count not in (None, call.num_outputs):
            raise ValueError(f"{count} parts for {call.num_outputs} outputs")
        count = call.num_outputs
        if isinstance(size, Expr) and divide_exactly(size, count) is None:
            raise Declined(f"an axis of {size} in {count} parts: their sizes are not known")
        width = ceildiv(size, count)
        sizes = [width] * (count - 1) + [size - width * (count - 1)]
    if not call.facts.proved_eq(sum(sizes, 0), size):
        raise ValueError(f"an axis of {size} in parts of {list(sizes)}")
    return tuple(pieces(call.b, x, axis, sizes))


@onnx_op("Concat")
def _concat(call: Call, *parts: Value, axis: int = 1) -> Value:
    return parts[0] if len(parts) == 1 else call.b.concat(*parts, axis=call.axis(axis, parts[0]))


# ---- padding -------------------------------------------------------------------------------

_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def padded_axes(
    call: Call, x: Value, axes: Sequence[int], pads: Sequence[Dim], mode: str, value: Value | float
) -> Value:
    """X with pads[i] before and pads[i + n] after axis i of n; negative ones cut it."""
    number = value
    if isinstance(value, Value):
        number = call.constant(value).reshape(-1)[0].item() if mode == "constant" else 0
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if before == 0 and after == 0:
            continue
        if mode == "constant":
            x = padded(call.b, x, axis, before, after, x.dtype.element(number))
        elif mode in _MODES:
            x = extended(call.b, x, axis, before, after, _MODES[mode])
        else:
            raise Declined(f"padding of mode {mode!r}")
    return x


@onnx_op("Pad", since=11)
def _pad(
    call: Call,
    x: Value,
    pads: Value,
    value: Value | None = None,
    axes: Value | None = None,
    *,
    mode: str = "constant",
) -> Value:
    chosen = call.axes(range(x.type.rank) if axes is None else call.ints(axes) or (), x.type.rank)
    return padded_axes(call, x, chosen, call.sizes(pads), mode, 0 if value is None else value)


@onnx_op("Pad")
def _pad_1(
    call: Call, x: Value, *, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Value:
    return padded_axes(call, x, range(x.type.rank), pads, mode, value)


@onnx_op("CenterCropPad")
def _center_crop_pad(
    call: Call, x: Value, shape: Value, *, axes: tuple[int, ...] | None = None
) -> Value:
    chosen = call.axes(range(x.type.rank) if axes is None else axes, x.type.rank)
    for axis, dim in zip(chosen, call.sizes(shape), strict=True):
        size, wanted = (call.static(d, "a size") for d in (x.shape[axis], dim))
        if wanted < size:
            start = (size - wanted) // 2
            x = part(call.b, x, axis, start, start + wanted)
        else:
            before = (wanted - size) // 2
            x = padded(call.b, x, axis, before, wanted - size - before, x.dtype.element(0))
    return x


# ---- blocks --------------------------------------------------------------------------------


@onnx_op("DepthToSpace")
def _depth_to_space(call: Call, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = x.shape
    depth = floordiv(c, blocksize * blocksize)
    if mode == "DCR":
        x = call.reshape(x, (n, blocksize, blocksize, depth, h, w))
        x = call.transpose(x, (0, 3, 4, 1, 5, 2))
    else:
        x = call.reshape(x, (n, depth, blocksize, blocksize, h, w))
        x = call.transpose(x, (0, 1, 4, 2, 5, 3))
    return call.reshape(x, (n, depth, h * blocksize, w * blocksize))


@onnx_op("SpaceToDepth")
def _space_to_depth(call: Call, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    n, c, h, w = x.shape
    rows, columns = floordiv(h, blocksize), floordiv(w, blocksize)
    x = call.reshape(x, (n, c, rows, blocksize, columns, blocksize))
    x = call.transpose(x, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return call.reshape(x, (n, c * blocksize * blocksize, rows, columns))


# ---- tensors from nothing ------------------------------------------------------------------


@onnx_op("ConstantOfShape")
def _constant_of_shape(call: Call, shape: Value, *, value: Known | None = None) -> Value:
    dtype = types.f32 if value is None else value.dtype
    number = 0 if value is None else call.constant(value).reshape(-1)[0].item()
    return call.b.full(value=dtype.element(number), shape=call.sizes(shape), dtype=dtype)


@onnx_op("Range")
def _range(call: Call, start: Value, limit: Value, delta: Value) -> Value:
    b, dtype = call.b, start.dtype
    if dtype.is_float:
        first, last, step = (call.constant(x).item() for x in (start, limit, delta))
        count = max(0, math.ceil((last - first) / step))
        return b.add(
            b.mul(b.iota(length=count, dtype=dtype), call.number(step, dtype)),
            call.number(first, dtype),
        )
    (first,), (last,) = call.sizes(start), call.sizes(limit)
    step = int(call.constant(delta).item())
    width = ceildiv(last - first, step) if step > 0 else ceildiv(first - last, -step)
    count = width if call.facts.proved_le(0, width) else maximum(width, 0)
    return b.iota(length=count, start=first, step=step, dtype=dtype)


@onnx_op("EyeLike")
def _eye_like(call: Call, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    to = x.dtype if dtype is None else dtype_of_element(dtype)
    return call.cast(call.b.eq(*_grid(call, x.shape, k)), to)


@onnx_op("Trilu")
def _trilu(call: Call, x: Value, k: Value | None = None, *, upper: bool = True) -> Value:
    shift = 0 if k is None else call.sizes(k)[0]
    row, column = _grid(call, x.shape[-2:], shift)
    kept = call.b.ge(column, row) if upper else call.b.le(column, row)
    return call.b.where(kept, x, call.number(x.dtype.element(0), x.dtype))


def _grid(call: Call, shape: Shape, shift: Dim) -> tuple[Value, Value]:
    """For a matrix: row + shift as a column, column as a row."""
    rows, columns = shape
    row = call.b.iota(length=rows, start=shift)
    return call.reshape(row, (rows, 1)), call.b.iota(length=columns)
