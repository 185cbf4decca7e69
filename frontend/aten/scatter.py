"""Operations in which a tensor of indices decides what is written."""

from functools import partial
from typing import Any

from ...ir import types
from ...ir.graph import Value
from ...ir.ops.scatter import COMBINES
from ..importer import Call, Declined, Scalar, handles
from ..nn.pad import part
from .index import at_places, is_mask, numbered
from .pointwise import Operand
from .view import common_shape, unpermute

# torch's words for how updates are combined; a mean is a sum, divided
_NAMES = {
    "sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul",
    "amax": "max", "amin": "min", "replace": "replace",
}  # fmt: skip


def _put(call: Call, x: Value, index: Value, updates: Value, axis: int, combine: str) -> Value:
    """Updates put into x: slices of it, or elements where the index is of its shape."""
    if x.dtype == types.bool_:
        combine = {"add": "max", "mul": "min"}.get(combine, combine)
    is_rows = updates.type.rank != index.type.rank or x.type.rank == 1
    op = call.b.scatter if is_rows else call.b.scatter_elements
    return op(x, index, updates, axis=axis, combine=combine)


def _reduced(
    call: Call, x: Value, index: Value, updates: Value, axis: int, reduce: str, include_self: bool
) -> Value:
    """Updates combined with each other, and (include_self) with what is there."""
    b, combine = call.b, _NAMES[reduce]

    def filled(value: Scalar, like: Value, dtype: types.DType) -> Value:
        return call.broadcast(call.value(value, dtype), like.shape)

    count = filled(1, x, types.i64)
    if not include_self:
        none, mark = (filled(v, o, types.bool_) for v, o in ((False, x), (True, updates)))
        met = _put(call, none, index, mark, axis, "replace")
        start = COMBINES[combine].identity_of(x.dtype)
        x = b.where(met, b.constant(start, x.dtype), x)
        count = b.where(met, b.constant(0, types.i64), count)
    total = _put(call, x, index, updates, axis, combine)
    if reduce != "mean":
        return total
    count = _put(call, count, index, filled(1, updates, types.i64), axis, "add")
    count = call.value(count, x.dtype)
    return b.div(total, count) if x.dtype.is_float else b.floordiv(total, count)


# ---- an index for each element ---------------------------------------------------------------


def _elements(call: Call, x: Value, index: Value, source: Operand) -> Value:
    """One update an index: a number, or the leading part of a tensor."""
    if not isinstance(source, Value):
        return call.broadcast(call.value(source, x.dtype), index.shape)
    for axis, size in enumerate(index.shape):
        if source.shape[axis] != size:
            source = call.b.slice(source, axis=axis, start=0, stop=size)
    return call.value(source, x.dtype)


@handles("scatter.src", "scatter.value", of_numbers=True, may_fail=True)
@handles("scatter.reduce", "scatter.value_reduce", of_numbers=True, may_fail=True)
def _scatter(
    call: Call, x: Value, dim: int, index: Value, source: Operand, *, reduce: str = "replace"
) -> Value:
    updates = _elements(call, x, index, source)
    return _put(call, x, index, updates, dim % x.type.rank, _NAMES[reduce])


handles("scatter_add.default", of_numbers=True, may_fail=True)(partial(_scatter, reduce="add"))


@handles("scatter_reduce.two", of_numbers=True, may_fail=True)
def _scatter_reduce(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    updates = _elements(call, x, index, source)
    return _reduced(call, x, index, updates, dim % x.type.rank, reduce, include_self)


# ---- an index for each slice -----------------------------------------------------------------


def _row(call: Call, index: Value) -> Value:
    return call.reshape(index, (index.type.numel,))


@handles("index_copy.default", of_numbers=True, may_fail=True)
def _index_copy(call: Call, x: Value, dim: int, index: Value, source: Value) -> Value:
    return call.b.scatter(x, _row(call, index), source, axis=dim % x.type.rank)


@handles("index_add.default", of_numbers=True, may_fail=True)
def _index_add(
    call: Call, x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1
) -> Value:
    updates = source if alpha == 1 else call.b.mul(source, call.parameter(alpha, source.dtype))
    return _put(call, x, _row(call, index), updates, dim % x.type.rank, "add")


@handles("index_reduce.default", of_numbers=True, may_fail=True)
def _index_reduce(
    call: Call,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    axis = dim % x.type.rank
    # an axis of its own in the index, so that its rank is not x's
    index = call.reshape(index, (index.type.numel, *(1,) * x.type.rank))
    shape = (*source.shape[: axis + 1], *(1,) * x.type.rank, *source.shape[axis + 1 :])
    source = call.reshape(source, shape)
    return _reduced(call, x, index, source, axis, reduce, include_self)


@handles("index_fill.int_Scalar", "index_fill.int_Tensor", of_numbers=True, may_fail=True)
def _index_fill(call: Call, x: Value, dim: int, index: Value, value: Operand) -> Value:
    axis, index = dim % x.type.rank, _row(call, index)
    place = call.b.check_index(index, size=x.shape[axis], wraps=True)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    updates = call.broadcast(call.value(value, x.dtype), shape)
    return call.b.scatter(x, place, updates, axis=axis)


@handles("index_put.default", "_unsafe_index_put.default", may_fail=True)
def _index_put(
    call: Call,
    x: Value,
    indices: tuple[Value | None, ...],
    values: Value,
    accumulate: bool = False,
) -> Value:
    values = call.value(values, x.dtype)
    used = [index for index in indices if index is not None]
    if any(map(is_mask, used)):
        return _put_where(call, x, indices, values, accumulate)
    flat, place, axis, order = at_places(call, x, indices)
    shape = (*flat.shape[:axis], *place.shape, *flat.shape[axis + 1 :])
    updates = call.broadcast(values, shape)
    out = _put(call, flat, place, updates, axis, "add" if accumulate else "replace")
    moved = tuple(x.shape[i] for i in order)
    return unpermute(call, call.reshape(out, moved), order)


def _put_where(
    call: Call, x: Value, indices: tuple[Value | None, ...], values: Value, accumulate: bool
) -> Value:
    """x[mask] = values: the same everywhere, or one for each true element in turn."""
    mask, *others = (index for index in indices if index is not None)
    if others or indices[0] is None:
        raise Declined("writing by a mask beside other indices")
    rest = x.shape[mask.type.rank :]
    mask = call.value(mask, types.bool_)
    if values.type.rank > len(rest):
        rows = call.broadcast(values, (values.shape[0], *rest))
        values = _counted_out(call, mask, rows)
    mask = call.reshape(mask, (*mask.shape, *(1,) * len(rest)))
    put = call.b.add(x, values) if accumulate else call.broadcast(values, x.shape)
    return call.b.where(call.broadcast(mask, common_shape(mask.shape, x.shape)), put, x)


def _counted_out(call: Call, mask: Value, rows: Value) -> Value:
    """rows[i] where the i-th true element of the mask is, some row elsewhere."""
    b = call.b
    flat = call.reshape(mask, (mask.type.numel,))
    place = b.where(flat, numbered(call, flat), call.value(0, types.i64))
    if not call.facts.proved_le(1, rows.shape[0]):  # then there is none to put elsewhere
        rows = b.pad(rows, axis=0, before=0, after=1, value=0)
    return b.gather(rows, call.reshape(place, mask.shape), axis=0)


@handles("masked_scatter.default", may_fail=True)
def _masked_scatter(call: Call, x: Value, mask: Value, source: Value) -> Value:
    mask = call.broadcast(mask, x.shape)
    rows = call.reshape(source, (source.type.numel,))
    return call.b.where(mask, _counted_out(call, mask, rows), x)


@handles("put.default", may_fail=True)
def _put_flat(call: Call, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    flat = call.reshape(x, (x.type.numel,))
    return call.reshape(_index_put(call, flat, (index,), source, accumulate), x.shape)


_BAGS = ("sum", "mean", "amax")  # by torch's numbers


@handles("embedding_bag.default", "embedding_bag.padding_idx", may_fail=True)
def _embedding_bag(
    call: Call,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Value, None, None, None]:
    """The rows that indices [N] name, each bag's put together; a bag begins at its offset.

    Sums accumulate in float32.
    """
    if any(map(call.reads, range(1, 4))):
        raise Declined("what the backward pass of bags of embeddings reads")
    b, (count,), one = call.b, indices.shape, call.value(1, types.i64)
    starts = call.broadcast(call.value(0, types.i64), (count + 1,))
    ones = call.broadcast(one, offsets.shape)
    starts = b.scatter(starts, offsets, ones, axis=0, combine="add")
    bag = b.sub(b.cumsum(part(b, starts, 0, 0, count), axis=0), one)
    bags = offsets.shape[0] - int(include_last_offset)
    if padding_idx is not None:  # into a bag of their own, as what lies behind the last offset
        padding_idx = padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx
        is_padding = b.eq(indices, call.value(padding_idx, indices.dtype))
        bag = b.where(is_padding, call.value(bags, types.i64), bag)
    wide = types.f64 if weight.dtype == types.f64 else types.f32
    rows = call.value(b.gather(weight, indices, axis=0), wide)
    if per_sample_weights is not None:
        rows = b.mul(rows, call.reshape(call.value(per_sample_weights, wide), (count, 1)))
    empty = call.broadcast(call.value(0.0, wide), (bags + 1, weight.shape[1]))
    found = _reduced(call, empty, bag, rows, 0, _BAGS[mode], include_self=False)
    return call.value(part(b, found, 0, 0, bags), weight.dtype), None, None, None


@handles("_embedding_bag.default", "_embedding_bag_forward_only.default", may_fail=True)
def _embedding_bag_inside(call: Call, *args: Any) -> tuple[Value, None, None, None]:
    return _embedding_bag(call, *(args[:8] if args[8:] == (-1,) else args))  # -1: no padding


@handles("histc.default")
def _histc(call: Call, x: Value, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Value:
    b = call.b
    x = call.reshape(x, (x.type.numel,))
    least, most = call.value(min, x.dtype), call.value(max, x.dtype)
    if min == max:  # those of the data; one more on both sides where they are equal, too
        least, most = b.min(x, axes=(0,)), b.max(x, axes=(0,))
        room = b.where(b.eq(least, most), call.value(1, x.dtype), call.value(0, x.dtype))
        least, most = b.sub(least, room), b.add(most, room)
    share = b.div(b.sub(x, least), b.sub(most, least))
    place = call.value(b.mul(share, call.value(bins, x.dtype)), types.i64)
    inside = b.and_(b.ge(x, least), b.le(x, most))
    last = call.value(bins - 1, types.i64)
    place = b.where(inside, b.minimum(place, last), call.value(0, types.i64))
    counts = call.broadcast(call.value(0, x.dtype), (bins,))
    return b.scatter(counts, place, call.value(inside, x.dtype), axis=0, combine="add")
