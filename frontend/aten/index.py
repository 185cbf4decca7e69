"""Operations in which a tensor of indices decides what is read."""

from typing import Any

import torch

from ...ir import types
from ...ir.dim import Dim, product
from ...ir.graph import Value
from ..declined import Refused
from ..importer import Call, Declined, handles
from ..nn.pad import part, reversed_axis
from .pointwise import Operand
from .view import common_shape, interleaved, permute, unpermute


@handles("embedding.default", may_fail=True)
def _embedding(call: Call, weight: Value, indices: Value, *_: Any, **__: Any) -> Value:
    return call.b.gather(weight, indices, axis=0)


@handles("index_select.default", of_numbers=True, may_fail=True)
def _index_select(call: Call, x: Value, dim: int, index: Value) -> Value:
    # an index without axes names a slice of one
    return call.b.gather(x, call.reshape(index, (index.type.numel,)), axis=dim % x.type.rank)


@handles("gather.default", of_numbers=True, may_fail=True)
def _gather(call: Call, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    return call.b.gather_elements(x, index, axis=dim % x.type.rank)


@handles("index.Tensor", "_unsafe_index.Tensor", may_fail=True)
def _index(call: Call, x: Value, indices: tuple[Value | None, ...]) -> Value:
    flat, place, axis, _ = at_places(call, x, _without_masks(call, indices))
    return call.b.gather(flat, place, axis=axis)


def is_mask(index: Value) -> bool:
    """Whether torch takes an index for a mask."""
    return index.dtype in (types.bool_, types.u8)


def _without_masks(call: Call, indices: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """The indices with a mask as the list of places where it is true, one index an axis of it."""
    places: list[Value | None] = []
    for index in indices:
        if index is not None and is_mask(index):
            places += columns(call, _nonzero(call, index))
        else:
            places.append(index)
    return tuple(places)


@handles("masked_select.default")
def _masked_select(call: Call, x: Value, mask: Value) -> Value:
    shape = common_shape(x.shape, mask.shape)
    mask = call.broadcast(mask, shape)
    _nonzero(call, mask, most=mask.type.numel)  # torch counts on those of the mask as it was
    return _index(call, call.broadcast(x, shape), (mask,))


@handles("nonzero.default")
def _nonzero(call: Call, x: Value, most: Dim = 0) -> Value:
    """Where x is not zero; how many places that are, only a run knows, unless there are none.

    Asked for once a tensor: torch has one size for all the uses of a mask. `most`: how many there
    may be where torch counts on fewer.
    """
    if x in call.importer.places:
        return call.importer.places[x]
    if x.type.numel == 0:
        for symbol in call.node.meta.get("unbacked_bindings") or ():
            call.importer.table.bind(symbol.name, 0)
        return call.b.full(value=0, shape=(0, x.type.rank), dtype=types.i64)
    names = call.importer.late_symbols(call.node, most=most)
    if not names:
        raise Refused("the module assumes how many places there are: compare sizes outside it")
    call.importer.places[x] = call.b.nonzero(x, binds=names)
    return call.importer.places[x]


@handles("item.default", "_local_scalar_dense.default")
def _item(call: Call, x: Value) -> Dim | Value:
    """The one number in x: a dim where it may be a size, else a value without axes."""
    x, table = call.reshape(x, ()), call.importer.table
    if not isinstance(call.expected, torch.SymInt):
        return call.value(x, types.f64) if x.dtype.is_float else x
    if not all(map(table.may_be_size, call.node.meta["unbacked_bindings"])):
        return call.value(x, types.i64)
    call.b.read_dim(call.value(x, types.i64), binds=call.importer.late_symbols(call.node))
    return table.dim(call.expected)


@handles("nonzero_numpy.default")
def _nonzero_numpy(call: Call, x: Value) -> tuple[Value, ...]:
    x = x if x.type.rank else call.reshape(x, (1,))  # torch has a number for a vector here
    return tuple(columns(call, _nonzero(call, x)))


def numbered(call: Call, mask: Value) -> Value:
    """Of a mask [N]: the number of each true element among these, from 0 on."""
    count = call.b.cumsum(call.value(mask, types.i64), axis=0)
    return call.b.sub(count, call.value(1, types.i64))


@handles("nonzero_static.default")
def nonzero_static(call: Call, x: Value, *, size: int, fill_value: int = -1) -> Value:
    """The first `size` places where x is not zero, then rows of `fill_value`."""
    b, count, rank = call.b, x.type.numel, x.type.rank
    flat = b.ne(call.reshape(x, (count,)), call.value(0, x.dtype))
    number = numbered(call, flat)
    last = call.value(size, types.i64)  # a row for all that does not count
    row = b.where(b.and_(flat, b.lt(number, last)), number, last)
    start = b.full(value=-1, shape=(size + 1,), dtype=types.i64)
    places = part(b, b.scatter(start, row, b.iota(length=count), axis=0), 0, 0, size)
    found = []
    for axis in range(rank):
        along = b.floordiv(places, call.value(product(x.shape[axis + 1 :]), types.i64))
        along = b.mod(along, call.value(x.shape[axis], types.i64))
        is_place = b.ge(places, call.value(0, types.i64))
        along = b.where(is_place, along, call.value(fill_value, types.i64))
        found.append(call.reshape(along, (size, 1)))
    if not found:
        return b.full(value=0, shape=(size, 0), dtype=types.i64)
    return b.concat(*found, axis=1) if rank > 1 else found[0]


@handles("take.default", may_fail=True)
def _take(call: Call, x: Value, index: Value) -> Value:
    return _index(call, call.reshape(x, (x.type.numel,)), (index,))


def columns(call: Call, places: Value) -> list[Value]:
    """The columns [N] of a table of places [N, rank]."""
    count, rank = places.shape
    found = (
        call.b.slice(places, axis=1, start=axis, stop=axis + 1)
        for axis in range(call.static(rank, "the rank"))
    )
    return [call.reshape(column, (count,)) for column in found]


def at_places(
    call: Call, x: Value, indices: tuple[Value | None, ...]
) -> tuple[Value, Value, int, list[int]]:
    """Where index tensors, one an axis or None, lie in x.

    They name one element each of their axes: -> x with these axes flattened into one, where in it
    the elements lie, which axis it is, and the order of x's axes that was flattened.
    """
    used = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    axes = [axis for axis, _ in used]
    if len(used) == 1:
        (axis, index) = used[0]
        place = call.b.check_index(index, size=x.shape[axis], wraps=True)
        return x, place, axis, list(range(x.type.rank))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    rest = [axis for axis in range(x.type.rank) if axis not in axes]
    before = axes[0] if adjacent else 0  # torch moves scattered axes to the front
    order = rest[:before] + axes + rest[before:]
    moved = permute(call, x, order)
    sizes = [x.shape[axis] for axis in axes]
    flat_shape = (*moved.shape[:before], product(sizes), *moved.shape[before + len(axes) :])
    shape = common_shape(*(index.shape for _, index in used))
    total: Value | None = None
    for position, (_, index) in enumerate(used):
        place = call.b.check_index(index, size=sizes[position], wraps=True)
        place = call.broadcast(call.value(place, types.i64), shape)  # the flat axis may be long
        stride = product(sizes[position + 1 :])
        if stride != 1:
            place = call.b.mul(place, call.value(stride, place.dtype))
        total = place if total is None else call.b.add(total, place)
    assert total is not None, "indexing names at least one axis"
    return call.reshape(moved, flat_shape), total, before, order


@handles("flip.default", of_numbers=True)
def _flip(call: Call, x: Value, dims: tuple[int, ...]) -> Value:
    for axis in dims:
        x = reversed_axis(call.b, x, axis % x.type.rank)
    return x


@handles("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(call: Call, x: Operand, boundaries: Value, **options: Any) -> Value:
    return _searchsorted(call, boundaries, x, **options)


@handles("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    call: Call,
    boundaries: Value,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None:
        boundaries = call.b.gather_elements(boundaries, sorter, axis=sorter.type.rank - 1)
    b, dtype = call.b, call.common_dtype(boundaries, x)
    row = call.value(boundaries, dtype)
    if row.type.rank > 1:
        row = call.reshape(row, (*row.shape[:-1], 1, row.shape[-1]))
    x = call.value(x, dtype)
    x = call.reshape(x, (*x.shape, 1))
    # how many boundaries do not end the search; written so that NaN is behind all of them
    stops = b.gt(row, x) if right or side == "right" else b.ge(row, x)
    return b.sum(call.value(b.not_(stops), call.dtype), axes=(-1,))


@handles("one_hot.default", may_fail=True)
def _one_hot(call: Call, x: Value, num_classes: int = -1) -> Value:
    if num_classes < 0:
        raise Declined("one_hot without num_classes: its size depends on values")
    b = call.b
    classes = b.iota(length=num_classes, dtype=x.dtype)
    column = call.reshape(b.check_index(x, size=num_classes), (*x.shape, 1))
    return call.value(b.eq(column, classes), call.dtype)


@handles("tril.default", "triu.default")
def _triangle(call: Call, x: Value, diagonal: Dim = 0) -> Value:
    b, (rows, columns) = call.b, x.shape[-2:]
    row = call.reshape(b.iota(length=rows, start=diagonal), (rows, 1))
    column = b.iota(length=columns)
    lower = str(call.target).startswith("aten.tril")
    kept = b.le(column, row) if lower else b.ge(column, row)
    return b.where(kept, x, call.value(False if x.dtype == types.bool_ else 0, x.dtype))


@handles("diagonal.default")
def _diagonal(call: Call, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    flat, start, step, _ = _diagonal_last(call, x, offset, dim1, dim2)
    b = call.b
    places = b.add(
        b.mul(b.iota(length=call.shape[-1]), call.value(step, types.i64)),
        call.value(start, types.i64),
    )
    return b.gather(flat, places, axis=flat.type.rank - 1)


@handles("diagonal_scatter.default")
def _diagonal_scatter(
    call: Call, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    flat, start, step, order = _diagonal_last(call, x, offset, dim1, dim2)
    source = call.value(source, x.dtype)
    changed = interleaved(call, flat, source, flat.type.rank - 1, start, step)
    return unpermute(call, call.reshape(changed, tuple(x.shape[axis] for axis in order)), order)


def _diagonal_last(
    call: Call, x: Value, offset: int, dim1: int, dim2: int
) -> tuple[Value, Dim, Dim, list[int]]:
    """X with both axes flattened into the last; where in it the diagonal starts, and its step.

    And the order of the axes that it was flattened in.
    """
    axes = [dim1 % x.type.rank, dim2 % x.type.rank]
    order = [axis for axis in range(x.type.rank) if axis not in axes] + axes
    moved = permute(call, x, order)
    rows, columns = moved.shape[-2:]
    # element i is at row i (or i - offset), i.e. at multiples of columns + 1 when flattened
    start = offset if offset >= 0 else -offset * columns
    flat = call.reshape(moved, (*moved.shape[:-2], rows * columns))
    return flat, start, columns + 1, order
