"""Views and copies that only rename indices: shapes, axes, slices, joins, padding."""

from typing import Any

from ...ir.dim import Dim, Expr, ceildiv, floordiv, maximum, minimum, mod, product
from ...ir.errors import ShapeError
from ...ir.graph import Value
from ...ir.op import broadcast_shapes
from ...ir.types import Shape, i64
from ..declined import Refused
from ..importer import Call, handles
from ..nn.pad import each_repeated, part, pieces

LAST = 2**63 - 1  # how ATen writes "to the end"


def common_shape(*shapes: Shape) -> Shape:
    """What the shapes broadcast to; ShapeError where they are not known to."""
    try:
        return broadcast_shapes(*shapes)
    except TypeError as error:
        raise ShapeError(str(error)) from error


@handles(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "_reshape_alias.default",
    "view_as.default",
    "reshape_as.default",
    "flatten.using_ints",
    "unflatten.int",
    "unsqueeze.default",
    "view_copy.default",
)
def _reshape(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.reshape(x, call.shape)


@handles("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(call: Call, x: Value, dim: int | tuple[int, ...] | None = None) -> Value:
    named = range(x.type.rank) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    for axis in {axis % max(x.type.rank, 1) for axis in named} if x.type.rank else ():
        size = x.shape[axis]
        # torch keeps an axis that is not 1; with size 1 in range the result's rank would vary
        if isinstance(size, Expr) and not call.facts.proved_ne(size, 1):
            raise Refused(f"squeeze of an axis of size {size}, which may be 1 or not")
    return call.reshape(x, call.shape)


@handles("transpose.int", "swapaxes.default", "transpose_copy.int", of_numbers=True)
def _transpose(call: Call, x: Value, dim0: int, dim1: int) -> Value:
    perm = list(range(x.type.rank))
    perm[dim0], perm[dim1] = perm[dim1], perm[dim0]
    return permute(call, x, perm)


def permute(call: Call, x: Value, perm: list[int]) -> Value:
    """Axes permuted; x itself when the order stays."""
    perm = [axis % x.type.rank for axis in perm]
    return x if perm == sorted(perm) else call.b.transpose(x, perm=tuple(perm))


@handles("permute.default", "permute_copy.default")
def _permute(call: Call, x: Value, dims: tuple[int, ...]) -> Value:
    return permute(call, x, list(dims))


def unpermute(call: Call, x: Value, perm: list[int]) -> Value:
    """The inverse of `permute`."""
    return permute(call, x, sorted(range(len(perm)), key=perm.__getitem__))


@handles("t.default", "numpy_T.default", "mT.default", "adjoint.default")
def _t(call: Call, x: Value) -> Value:
    if x.type.rank < 2:
        return x
    if str(call.target).startswith("aten.numpy_T"):
        return permute(call, x, list(reversed(range(x.type.rank))))
    return _transpose(call, x, -2, -1)


@handles("expand.default", "broadcast_to.default", "expand_as.default", "expand_copy.default")
def _expand(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.broadcast(x, call.shape)


@handles("broadcast_tensors.default")
def _broadcast_tensors(call: Call, tensors: tuple[Value, ...]) -> list[Value]:
    return [call.broadcast(x, call.shape) for x in tensors]


# ---- parts ---------------------------------------------------------------------------------


def bound(call: Call, index: Dim | None, size: Dim, default: Dim) -> Dim:
    """A slice bound as torch reads it: negative counts from the end, clamped into [0, size]."""
    if index is None:
        return default
    if isinstance(index, int):
        if index >= LAST:
            return size
        if index < 0:
            index = size + index
    facts = call.facts
    if not facts.proved_le(0, index):
        index = 0 if facts.proved_le(index, 0) else maximum(index, 0)
    return index if facts.proved_le(index, size) else minimum(index, size)


@handles("slice.Tensor", "slice_copy.Tensor")
def _slice(
    call: Call,
    x: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    axis = dim % x.type.rank
    size = x.shape[axis]
    first, last = bound(call, start, size, 0), bound(call, end, size, size)
    if not call.facts.proved_le(first, last):
        # an empty slice when the bounds cross: make it start where it stops
        first = last if call.facts.proved_le(last, first) else minimum(first, last)
    return part(call.b, x, axis, first, last, step)


@handles("narrow.default", "narrow_copy.default")
def _narrow(call: Call, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    axis = dim % x.type.rank
    first = bound(call, start, x.shape[axis], 0)
    return part(call.b, x, axis, first, first + length)


@handles("select.int", "select_copy.int", may_fail=True)
def _select(call: Call, x: Value, dim: int, index: Dim | Value) -> Value:
    axis = dim % x.type.rank
    if isinstance(index, Value):
        place = call.b.check_index(index, size=x.shape[axis], wraps=True)
        return call.b.gather(x, place, axis=axis)
    if isinstance(index, int) and index < 0:
        index = x.shape[axis] + index
    return call.reshape(part(call.b, x, axis, index, index + 1), call.shape)


@handles(
    "split.sizes",
    "split.default",
    "split_with_sizes.default",
    "split_with_sizes_copy.default",
)
def _split_sizes(call: Call, x: Value, _sizes: Any, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    # torch has computed how the axis divides; the sizes are checked against ours piece by piece
    sizes = (call.importer.table.dim(expected.shape[axis]) for expected in call.expected)
    return pieces(call.b, x, axis, sizes)


@handles("split.Tensor")
def _split(call: Call, x: Value, width: Dim, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    size, count = x.shape[axis], len(call.expected)
    parts = 1 if size == 0 else ceildiv(size, width)
    if not call.facts.proved_eq(parts, count):
        raise Refused(f"an axis of {size} in parts of {width}: how many depends on the size")
    return _split_sizes(call, x, width, dim)


@handles("chunk.default", "tensor_split.sections")
def _chunk(call: Call, x: Value, chunks: int, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    size = x.shape[axis]
    # torch makes fewer chunks when rounding up the width leaves nothing for the last ones
    if isinstance(size, Expr) and floordiv(size, chunks) * chunks != size:
        raise Refused(f"an axis of {size} in {chunks} chunks: how many depends on the size")
    return _split_sizes(call, x, chunks, dim)


@handles("unbind.int", "unbind_copy.int")
def _unbind(call: Call, x: Value, dim: int = 0) -> list[Value]:
    axis = dim % x.type.rank
    count = call.static(x.shape[axis], "the number of parts")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [call.reshape(part(call.b, x, axis, i, i + 1), shape) for i in range(count)]


@handles("unfold.default", "unfold_copy.default")
def _unfold(call: Call, x: Value, dim: int, size: int, step: int) -> Value:
    if x.type.rank == 0:
        return call.broadcast(call.reshape(x, (1,)), call.shape)
    return call.b.window(x, axis=dim % x.type.rank, size=size, step=step)


def _strided(call: Call, x: Value, shape: Shape, stride: tuple[Dim, ...], offset: Dim) -> Value:
    """Where in x's memory, which torch has to hold x alone, elements of such a view lie."""
    traced = call.node.args[0].meta["val"]
    if not traced.is_contiguous() or traced.storage_offset() != 0:
        raise Refused("a view of memory that its operand is a part of")
    b, at = call.b, call.value(offset, i64)
    for axis, (count, step) in enumerate(zip(shape, stride)):
        along = b.mul(b.iota(length=count, dtype=i64), call.value(step, i64))
        at = b.add(at, call.reshape(along, (count, *(1,) * (len(shape) - 1 - axis))))
    return call.broadcast(at, shape)


@handles("as_strided.default", "as_strided_copy.default", may_fail=True)
def _as_strided(
    call: Call, x: Value, size: Any, stride: tuple[Dim, ...], storage_offset: Dim | None = None
) -> Value:
    at = _strided(call, x, call.shape, stride, storage_offset or 0)
    return call.b.gather(call.reshape(x, (x.type.numel,)), at, axis=0)


@handles("as_strided_scatter.default", may_fail=True)
def _as_strided_scatter(
    call: Call,
    x: Value,
    source: Value,
    size: Any,
    stride: tuple[Dim, ...],
    storage_offset: Dim | None = None,
) -> Value:
    at = _strided(call, x, source.shape, stride, storage_offset or 0)
    flat = call.reshape(x, (x.type.numel,))
    return call.reshape(call.b.scatter(flat, at, call.value(source, x.dtype), axis=0), x.shape)


@handles("resize.default")
def _resize(call: Call, x: Value, size: Any, **_: Any) -> Value:
    """The first elements in memory; zeros where torch leaves what was there."""
    flat, count = call.reshape(x, (x.type.numel,)), product(call.shape)
    if not call.facts.proved_le(count, x.type.numel):
        flat = call.b.pad(flat, axis=0, before=0, after=maximum(count - x.type.numel, 0), value=0)
    return call.reshape(part(call.b, flat, 0, 0, count), call.shape)


# ---- joins ---------------------------------------------------------------------------------


@handles("cat.default", "concat.default", "concatenate.default")
def _cat(call: Call, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    # torch lets an empty vector join anything
    parts = [call.value(x, call.dtype) for x in tensors if x.shape != (0,) or len(call.shape) == 1]
    if len(parts) == 1:
        return parts[0]
    return call.b.concat(*parts, axis=dim % len(call.shape))


@handles("stack.default")
def _stack(call: Call, tensors: tuple[Value, ...], dim: int = 0) -> Value:
    axis = dim % len(call.shape)
    one = (*call.shape[:axis], 1, *call.shape[axis + 1 :])
    parts = [call.reshape(call.value(x, call.dtype), one) for x in tensors]
    return call.b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]


@handles("repeat.default", "tile.default")
def _tile(call: Call, x: Value, repeats: tuple[Dim, ...]) -> Value:
    repeats = (*[1] * (x.type.rank - len(repeats)), *repeats)
    shape = (1,) * (len(repeats) - x.type.rank) + x.shape
    if all(count == 1 for count in repeats):
        return call.reshape(x, shape)
    # [n] * r times is [r, n] flattened
    spread = tuple(d for size in shape for d in (1, size))
    wide = tuple(d for count, size in zip(repeats, shape) for d in (count, size))
    return call.reshape(call.broadcast(call.reshape(x, spread), wide), call.shape)


@handles("repeat_interleave.self_int")
def _repeat_interleave(
    call: Call, x: Value, repeats: Dim, dim: int | None = None, output_size: Dim | None = None
) -> Value:
    if dim is None:
        x, dim = call.reshape(x, (x.type.numel,)), 0
    return call.reshape(each_repeated(call.b, x, dim % x.type.rank, repeats), call.shape)


@handles("roll.default", of_numbers=True)
def _roll(call: Call, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = shifts if isinstance(shifts, tuple) else (shifts,)
    dims = dims if isinstance(dims, tuple) else (dims,)
    if not dims:
        flat = _rolled(call, call.reshape(x, (x.type.numel,)), 0, shifts[0])
        return call.reshape(flat, x.shape)
    for shift, axis in zip(shifts, dims):
        x = _rolled(call, x, axis % x.type.rank, shift)
    return x


def _rolled(call: Call, x: Value, axis: int, shift: Dim) -> Value:
    size = x.shape[axis]
    if size == 0:
        return x
    # what is moved off the end comes back in front; an empty axis has nothing to divide by
    turn = size if call.facts.proved_le(1, size) else maximum(size, 1)
    cut = mod(shift * -1, turn)
    first, second = part(call.b, x, axis, cut, size), part(call.b, x, axis, 0, cut)
    return call.b.concat(first, second, axis=axis)


@handles("slice_scatter.default")
def _slice_scatter(
    call: Call,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Value:
    axis = dim % x.type.rank
    size = x.shape[axis]
    first, last = bound(call, start, size, 0), bound(call, end, size, size)
    if step != 1:
        return interleaved(call, x, source, axis, first, step)
    return spliced(call, x, source, axis, first, last)


def interleaved(call: Call, x: Value, source: Value, axis: int, first: Dim, step: Dim) -> Value:
    """X with first, first + step, ... along axis replaced, as many as the source is long."""
    b, size, count = call.b, x.shape[axis], source.shape[axis]
    # whole strides, the last of which may reach past the end
    wide = b.pad(x, axis=axis, before=0, after=step - 1, value=0)
    stop = first + count * step
    strides = call.reshape(
        part(call.b, wide, axis, first, stop), (*x.shape[:axis], count, step, *x.shape[axis + 1 :])
    )
    column = call.reshape(source, (*source.shape[: axis + 1], 1, *source.shape[axis + 1 :]))
    changed = spliced(call, strides, column, axis + 1, 0, 1)
    flat = call.reshape(changed, (*x.shape[:axis], count * step, *x.shape[axis + 1 :]))
    return part(call.b, spliced(call, wide, flat, axis, first, stop), axis, 0, size)


@handles("select_scatter.default", may_fail=True)
def _select_scatter(call: Call, x: Value, source: Value, dim: int, index: Dim | Value) -> Value:
    axis = dim % x.type.rank
    row = call.reshape(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    if isinstance(index, Value):
        place = call.b.check_index(index, size=x.shape[axis], wraps=True)
        return call.b.scatter(x, call.reshape(place, (1,)), row, axis=axis)
    if isinstance(index, int) and index < 0:
        index = x.shape[axis] + index
    return spliced(call, x, row, axis, index, index + 1)


def spliced(call: Call, x: Value, source: Value, axis: int, first: Dim, last: Dim) -> Value:
    """X with [first, last) along axis replaced."""
    source = call.value(source, x.dtype)
    if first == 0 and last == x.shape[axis]:
        return source
    parts = [source]
    if first != 0:
        parts.insert(0, part(call.b, x, axis, 0, first))
    if last != x.shape[axis]:
        parts.append(part(call.b, x, axis, last, x.shape[axis]))
    return call.b.concat(*parts, axis=axis)


@handles("copy.default")
def _copy(call: Call, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return call.broadcast(call.value(source, x.dtype), x.shape)
