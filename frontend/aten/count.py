"""Operations that count equal elements: how many different ones there are, only data says."""

from collections.abc import Sequence

from ...ir import types
from ...ir.dim import Dim
from ...ir.graph import Value
from ..importer import Call, Declined, handles
from ..nn.pad import part
from .index import numbered


@handles("bincount.default", may_fail=True)
def _bincount(call: Call, x: Value, weights: Value | None = None, minlength: Dim = 0) -> Value:
    b, binds = call.b, call.importer.late_symbols(call.node)
    if not binds:
        raise Declined("a count of values whose size is known beforehand")
    x, one = call.value(x, types.i64), call.value(1, types.i64)
    # one element more, so that there is a largest of none
    least = call.reshape(b.sub(call.value(minlength, types.i64), one), (1,))
    size = b.add(b.max(b.concat(x, least, axis=0), axes=(0,)), one)
    b.read_dim(size, binds=binds)
    start = call.broadcast(call.value(0, call.dtype), call.shape)
    counted = call.broadcast(one, x.shape) if weights is None else weights
    return b.scatter(start, x, call.value(counted, call.dtype), axis=0, combine="add")


@handles("unique_consecutive.default")
def _unique_consecutive(
    call: Call,
    x: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Sequence[Value]:
    if dim is not None and x.type.rank != 1:
        raise Declined("runs of equal slices along an axis")
    row = call.reshape(x, (x.type.numel,))
    values, run, counts = _runs(call, row)
    inverse = call.reshape(run, x.shape) if return_inverse else _none(call)
    return values, inverse, counts if return_counts else _none(call)


@handles("_unique2.default")
def _unique(
    call: Call,
    x: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Sequence[Value]:
    b = call.b
    ordered, places = b.sort(call.reshape(x, (x.type.numel,)), axis=0)
    values, run, counts = _runs(call, ordered)
    counts = counts if return_counts else _none(call)
    if not return_inverse:
        return values, _none(call), counts
    return values, call.reshape(b.scatter(run, places, run, axis=0), x.shape), counts


def _none(call: Call) -> Value:
    """What torch returns for a result that was not asked for."""
    return call.b.full(value=0, shape=(0,), dtype=types.i64)


def _runs(call: Call, row: Value) -> tuple[Value, Value, Value]:
    """Runs of equal elements: the first of each, the run of each element, how long each is."""
    b, size = call.b, row.shape[0]
    if not call.facts.proved_le(1, size):
        raise Declined("the different elements of nothing")
    before, after = part(b, row, 0, 0, size - 1), part(b, row, 0, 1, size)
    first = b.full(value=True, shape=(1,), dtype=types.bool_)
    begins = b.concat(first, b.ne(before, after), axis=0)
    found = b.nonzero(begins, binds=call.importer.late_symbols(call.node, most=size))
    starts = call.reshape(found, (found.shape[0],))
    run = numbered(call, begins)
    zero = call.broadcast(call.value(0, types.i64), starts.shape)
    lengths = b.scatter(
        zero, run, call.broadcast(call.value(1, types.i64), run.shape), combine="add"
    )
    return b.gather(row, starts, axis=0), run, lengths
