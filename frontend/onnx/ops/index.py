"""Operators in which a tensor of indices, or of conditions, decides what is read or written."""

from collections.abc import Sequence

from ....ir import types
from ....ir.dim import Dim, product
from ....ir.graph import Value
from ....ir.op import normalize_axis
from ...declined import Declined
from ...nn.pad import part
from ..operators import Call, onnx_op

_COMBINES = {"none": "replace", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_OF_BOOLS = {"add": "max", "mul": "min"}


def wrapped(call: Call, index: Value, size: Dim) -> Value:
    """Places, of which those below 0 count from the end."""
    return call.b.check_index(index, size=size, wraps=True)


def _combine(reduction: str, x: Value) -> str:
    if reduction not in _COMBINES:
        raise Declined(f"reduction {reduction!r}")
    combine = _COMBINES[reduction]
    return _OF_BOOLS.get(combine, combine) if x.dtype == types.bool_ else combine


# ---- reading ---------------------------------------------------------------------------------


@onnx_op("Gather")
def _gather(call: Call, x: Value, index: Value, *, axis: int = 0) -> Value:
    axis = call.axis(axis, x)
    return call.b.gather(x, wrapped(call, index, x.shape[axis]), axis=axis)


@onnx_op("GatherElements")
def _gather_elements(call: Call, x: Value, index: Value, *, axis: int = 0) -> Value:
    axis = call.axis(axis, x)
    return call.b.gather_elements(x, wrapped(call, index, x.shape[axis]), axis=axis)


@onnx_op("GatherND")
def _gather_nd(call: Call, x: Value, index: Value, *, batch_dims: int = 0) -> Value:
    b, rest = call.b, x.shape[batch_dims:]
    place, count = _flat_places(call, index, rest)
    sizes, kept = rest[:count], rest[count:]
    batch = x.shape[:batch_dims]
    if batch_dims:
        # each batch has its own stretch of the flat axis
        number = call.reshape(b.iota(length=product(batch)), (*batch, *_ones(place, batch_dims)))
        stretch = b.dim_value(value=product(sizes))
        place = b.add(place, b.mul(number, stretch))
    return b.gather(call.reshape(x, (product(batch) * product(sizes), *kept)), place, axis=0)


def _ones(x: Value, start: int) -> tuple[int, ...]:
    return (1,) * (x.type.rank - start)


def _flat_places(call: Call, index: Value, sizes: Sequence[Dim]) -> tuple[Value, int]:
    """Index tuples along the last axis as places in the leading sizes, flattened.

    -> the places, and how many sizes that are.
    """
    b = call.b
    count = call.static(index.shape[-1], "the length of index tuples")
    if count > len(sizes):
        raise Declined(f"index tuples of {count} numbers into {len(sizes)} axes")
    total = b.full(value=0, shape=index.shape[:-1], dtype=types.i64)
    for i in range(count):
        column = b.slice(index, axis=-1, start=i, stop=i + 1)
        place = wrapped(call, call.reshape(column, index.shape[:-1]), sizes[i])
        stride = b.dim_value(value=product(sizes[i + 1 : count]))
        total = b.add(total, b.mul(call.cast(place, types.i64), stride))
    return total, count


@onnx_op("OneHot")
def _one_hot(call: Call, index: Value, depth: Value, values: Value, *, axis: int = -1) -> Value:
    b, rank = call.b, index.type.rank + 1
    whole = depth if depth.dtype.is_integer else call.b.cast(depth, dtype=types.i64)
    (size,) = call.sizes(whole)
    axis = normalize_axis(axis, rank)
    index = call.cast(index, types.i64)
    index = b.where(
        b.lt(index, call.number(0, types.i64)), b.add(index, b.dim_value(value=size)), index
    )
    index = call.reshape(index, (*index.shape[:axis], 1, *index.shape[axis:]))
    classes = call.reshape(b.iota(length=size), (size, *(1,) * (rank - 1 - axis)))
    off, on = (call.reshape(part(b, values, 0, i, i + 1), ()) for i in range(2))
    return b.where(b.eq(classes, index), on, off)


@onnx_op("ReverseSequence")
def _reverse_sequence(
    call: Call, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0
) -> Value:
    b, rank = call.b, x.type.rank
    batch, time = call.axis(batch_axis, x), call.axis(time_axis, x)
    if batch == time:
        raise ValueError(f"axis {batch} is the batch's and the time's")

    def along(v: Value, axis: int) -> Value:
        return call.reshape(v, tuple(x.shape[i] if i == axis else 1 for i in range(rank)))

    step = along(b.iota(length=x.shape[time]), time)
    length = along(call.cast(lengths, types.i64), batch)
    turned = b.sub(b.sub(length, call.number(1, types.i64)), step)
    place = b.where(b.lt(step, length), turned, step)
    return b.gather_elements(x, call.broadcast(place, x.shape), axis=time)


# ---- writing ---------------------------------------------------------------------------------


@onnx_op("Scatter", "ScatterElements")
def _scatter_elements(
    call: Call, x: Value, index: Value, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    axis = call.axis(axis, x)
    place = wrapped(call, index, x.shape[axis])
    return call.b.scatter_elements(x, place, updates, axis=axis, combine=_combine(reduction, x))


@onnx_op("ScatterND")
def _scatter_nd(
    call: Call, x: Value, index: Value, updates: Value, *, reduction: str = "none"
) -> Value:
    place, count = _flat_places(call, index, x.shape)
    flat = call.reshape(x, (product(x.shape[:count]), *x.shape[count:]))
    combine = _combine(reduction, x)
    return call.reshape(call.b.scatter(flat, place, updates, axis=0, combine=combine), x.shape)


@onnx_op("TensorScatter")
def _tensor_scatter(
    call: Call,
    cache: Value,
    update: Value,
    start: Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Value:
    b, axis, rank = call.b, call.axis(axis, cache), cache.type.rank
    place = call.reshape(
        b.iota(length=update.shape[axis]), (update.shape[axis], *(1,) * (rank - 1 - axis))
    )
    if start is not None:
        first = call.cast(call.reshape(start, (*start.shape, *(1,) * (rank - 1))), types.i64)
        place = b.add(place, first)
    if mode == "circular":
        place = b.mod(place, b.dim_value(value=cache.shape[axis]))
    elif mode != "linear":
        raise Declined(f"mode {mode!r}")
    return b.scatter_elements(cache, call.broadcast(place, update.shape), update, axis=axis)


# ---- order -----------------------------------------------------------------------------------


def _topk(call: Call, x: Value, k: Dim, axis: int, largest: bool) -> tuple[Value, Value]:
    return call.b.topk(x, k=k, axis=call.axis(axis, x), largest=largest)


@onnx_op("TopK")
def _topk_of_attribute(call: Call, x: Value, *, k: int, axis: int = -1) -> tuple[Value, Value]:
    return _topk(call, x, k, axis, 1)


@onnx_op("TopK", since=10)
def _topk_of_operand(
    call: Call, x: Value, k: Value, *, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, Value]:
    (count,) = call.sizes(k)
    return _topk(call, x, count, axis, largest)


# ---- as many as the data says ----------------------------------------------------------------


def places(call: Call, x: Value) -> Value:
    """Where x is not zero: [n, rank], of which only a run knows n."""
    name = call.b.late_dim("places", 0)
    return call.b.nonzero(x, binds=(name,))


def chosen(call: Call, flags: Value) -> Value:
    """Where a vector of flags is true: a vector."""
    found = places(call, flags)
    return call.reshape(found, (found.shape[0],))


@onnx_op("NonZero")
def _nonzero(call: Call, x: Value) -> Value:
    return call.transpose(places(call, x), (1, 0))


@onnx_op("Compress")
def _compress(call: Call, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    if axis is None:
        x, axis = call.reshape(x, (x.type.numel,)), 0
    return call.b.gather(x, chosen(call, condition), axis=call.axis(axis, x))


MAX_COLUMNS = 256  # of rows that are put in order, one sort a column


@onnx_op("Unique")
def _unique(
    call: Call, x: Value, *, axis: int | None = None, sorted: bool = True
) -> tuple[Value, Value, Value, Value]:
    """The rows along axis are put in order by one stable sort a column, the last one first.

    Equal ones are then neighbours, the earliest of them first.
    """
    b = call.b
    place = 0 if axis is None else call.axis(axis, x)
    x = call.reshape(x, (x.type.numel,)) if axis is None else x
    count, others = x.shape[place], (*x.shape[:place], *x.shape[place + 1 :])
    width = call.static(product(others), "the size of what is compared")
    if width > MAX_COLUMNS:
        raise Declined(f"unique rows of {width} elements, of more than {MAX_COLUMNS}")
    front = (place, *(i for i in range(x.type.rank) if i != place))
    rows = call.reshape(call.transpose(x, front), (count, width))
    order = b.iota(length=count)
    for column in reversed(range(width)):
        keys = call.reshape(part(b, rows, 1, column, column + 1), (count,))
        order = b.gather(order, b.sort(b.gather(keys, order, axis=0))[1], axis=0)
    ordered = b.gather(rows, order, axis=0)
    zero = call.number(0, types.i64)
    before = b.gather(ordered, b.maximum(b.iota(length=count, start=-1), zero), axis=0)
    differs = b.any(b.ne(ordered, before), axes=(1,))
    is_new = b.or_(differs, b.eq(b.iota(length=count), zero))
    starts = chosen(call, is_new)
    number = b.sub(b.cumsum(call.cast(is_new, types.i64), axis=0), call.number(1, types.i64))
    inverse = b.scatter(b.full(value=0, shape=(count,), dtype=types.i64), order, number)
    none = b.full(value=0, shape=starts.shape, dtype=types.i64)
    one = b.full(value=1, shape=(count,), dtype=types.i64)
    counts, first = b.scatter(none, inverse, one, combine="add"), b.gather(order, starts, axis=0)
    if not sorted:
        turn = b.sort(first)[1]
        first, counts = b.gather(first, turn, axis=0), b.gather(counts, turn, axis=0)
        inverse = b.gather(_inverse(call, turn), inverse, axis=0)
    return b.gather(x, first, axis=place), first, inverse, counts


def _inverse(call: Call, order: Value) -> Value:
    """Where in an order each place stands."""
    numbers = call.b.iota(length=order.shape[0])
    return call.b.scatter(call.b.full(value=0, shape=order.shape, dtype=types.i64), order, numbers)
