"""Branches and loops: regions of our own, or written out where what they carry changes its type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from ....ir import types
from ....ir.dim import Dim, maximum
from ....ir.errors import ShapeError
from ....ir.graph import Value
from ....ir.types import TensorType
from ...declined import Declined
from ...nn.pad import part, reversed_axis
from ...nn.scan import many
from ..known import Known, OnnxBuilder
from ..operators import Call, Region, known, onnx_op

MAX_TIMES = 1000  # of a loop that is written out


@onnx_op("If")
def _if(
    call: Call, condition: Value, *, then_branch: GraphProto, else_branch: GraphProto
) -> tuple[Any, ...]:
    if call.is_known(condition):
        is_true = bool(call.constant(condition).reshape(()))
        return tuple(call.inline(then_branch if is_true else else_branch, ()))
    try:
        regions = [call.region(*r, ()) for r in (("then", then_branch), ("otherwise", else_branch))]
    except ShapeError:  # perhaps of the branch that is not taken
        call.importer.require_input(condition)
        raise
    first, second = ([_type(v) for v in r.outputs] for r in regions)
    if None in first or first != second:
        # which of them it is may be known after all, once the model knows numbers of its inputs
        call.constant(condition)
    (then, otherwise), captured = call.joined(*regions)
    pred = call.reshape(condition, ())
    return many(call.b.cond(pred, *captured, then=then, otherwise=otherwise))


def _type(x: Any) -> TensorType | None:
    return x.type if isinstance(x, Value) else None


# ---- Loop ------------------------------------------------------------------------------------


@onnx_op("Loop")
def _loop(
    call: Call,
    limit: Value | None = None,
    condition: Value | None = None,
    *states: Any,
    body: GraphProto,
) -> tuple[Any, ...]:
    """A scan over as many times as it goes on, counted by a loop of its own where data says."""
    goes_on = known(np.array(True)) if condition is None else call.reshape(condition, ())
    carried = (known(np.array(0)), goes_on, *states)
    if not all(isinstance(v, Value) for v in states):
        return _written_out(call, limit, carried, body)
    region = call.region("body", body, [_formal(i, v) for i, v in zip(body.input, carried)])
    b, number, flag = region.builder, *region.builder.inputs[:2]
    new = [b.add(number, b.constant(1, types.i64)), *region.outputs]
    if [_type(v) for v in new[2 : len(carried)]] != [v.type for v in states]:
        return _written_out(call, limit, carried, body)
    carried = (*map(call.reshape, carried[:2], (number.shape, flag.shape)), *states)
    new[1] = b.reshape(new[1], shape=flag.shape)
    is_endless = _is_true(call, goes_on) and (region.outputs[0] is flag or _is_true(call, new[1]))
    step = Region(b, new[: len(carried)])
    if is_endless:
        if limit is None:
            raise Declined("a loop that does not end")
        (times,) = call.sizes(limit)
        count: Dim = maximum(times, 0)
    else:
        found = _while(call, limit, carried, step)
        if len(new) == len(carried):
            return found[2:]
        (count,) = call.sizes(found[0])
    return _scan(call, count, carried, 0, (), Region(b, new))[2:]


def _formal(input: Any, value: Value) -> TensorType:
    """The type of a body's input: its own number of axes for numbers, else that of the value."""
    declared = input.type.tensor_type
    is_row = declared.HasField("shape") and len(declared.shape.dim) == 1 and value.type.numel == 1
    return value.type.with_shape((1,)) if is_row and not value.shape else value.type


def _is_true(call: Call, x: Value) -> bool:
    return isinstance(x, Known) and call.is_known(x) and bool(call.constant(x).all())


def _while(
    call: Call, limit: Value | None, carried: Sequence[Value], step: Region
) -> tuple[Value, ...]:
    """What is carried, once the condition or the limit ended the loop."""
    b = OnnxBuilder("condition", call.b.symbols.values(), call.b)
    number, goes_on, *_ = [b.input(f"x{i}", v.shape, v.dtype) for i, v in enumerate(carried)]
    holds = b.reshape(goes_on, shape=())
    if limit is not None:
        bound = b.reshape(b.cast(limit, dtype=types.i64), shape=())
        holds = b.and_(holds, b.lt(b.reshape(number, shape=()), bound))
    (condition, body), captured = call.joined(Region(b, [holds]), step)
    options = {"carried": len(carried), "condition": condition, "body": body}
    return many(call.b.while_loop(*carried, *captured, **options))


def _scan(
    call: Call,
    count: Dim,
    carried: Sequence[Value],
    stacked: int,
    slices: Sequence[Value],
    region: Region,
) -> tuple[Value, ...]:
    """The op `scan`; where nothing is carried, something that nobody reads."""
    is_idle = not carried
    if is_idle:
        none = region.builder.input("none", (), types.bool_)
        region.builder.inputs = [none, *(v for v in region.builder.inputs if v is not none)]
        carried, region = (known(np.array(False)),), Region(region.builder, [none, *region.outputs])
    (body,), captured = call.joined(region)
    options = {"carried": len(carried), "stacked": stacked, "count": count, "body": body}
    return many(call.b.scan(*carried, *slices, *captured, **options))[is_idle:]


def _written_out(
    call: Call, limit: Value | None, carried: Sequence[Any], body: GraphProto
) -> tuple[Any, ...]:
    """The body as often as it runs: what it carries may have another type each time."""
    count = None if limit is None else int(call.constant(limit).reshape(()))
    _, goes_on, *states = carried
    rows: list[Sequence[Value]] = []
    while count is None or len(rows) < count:
        if not call.constant(goes_on).all():
            break
        if len(rows) == MAX_TIMES:
            raise Declined(f"a loop that carries what changes its type over {MAX_TIMES} times")
        goes_on, *results = call.inline(body, [known(np.array(len(rows))), goes_on, *states])
        states, row = results[: len(states)], results[len(states) :]
        rows.append(row)
    if not rows and len(body.output) > 1 + len(states):
        raise Declined("a loop that never runs, whose results have no known shape")
    return (*states, *(stacked(call, column, 0) for column in zip(*rows)))


def stacked(call: Call, values: Sequence[Value], axis: int) -> Value:
    """Values of one type along a new axis."""
    one = [call.reshape(v, (*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    return call.b.concat(*one, axis=axis)


# ---- Scan ------------------------------------------------------------------------------------


def _scanned(
    call: Call,
    operands: Sequence[Value],
    body: GraphProto,
    num_scan_inputs: int,
    axes: Sequence[int],
    backwards: Sequence[int],
    out_axes: Sequence[int] = (),
    out_backwards: Sequence[int] = (),
) -> tuple[Value, ...]:
    b = call.b
    number = len(operands) - num_scan_inputs
    states, xs = operands[:number], list(operands[number:])
    for i, x in enumerate(xs):
        axis = call.axis(axes[i] if axes else 0, x)
        x = call.transpose(x, (axis, *(a for a in range(x.type.rank) if a != axis)))
        xs[i] = reversed_axis(b, x, 0) if backwards and backwards[i] else x
    slices = [x.type.with_shape(x.shape[1:]) for x in xs]
    region = call.region("body", body, [*(v.type for v in states), *slices])
    given = [_type(v) for v in region.outputs[:number]]
    if given != [v.type for v in states]:
        raise Declined(f"its body makes {given} of {[v.type for v in states]}")
    found = list(_scan(call, xs[0].shape[0], states, num_scan_inputs, xs, region))
    for i, y in enumerate(found[number:]):
        y = reversed_axis(b, y, 0) if out_backwards and out_backwards[i] else y
        axis = call.axis(out_axes[i] if out_axes else 0, y)
        found[number + i] = call.transpose(
            y, (*range(1, axis + 1), 0, *range(axis + 1, y.type.rank))
        )
    return tuple(found)


@onnx_op("Scan", since=8)
def _scan_of_batches(
    call: Call,
    lengths: Value | None,
    *operands: Value,
    body: GraphProto,
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    """One scan for each element of a batch, which is axis 0 of everything."""
    if lengths is not None:
        raise Declined("sequences of different lengths")
    batch = call.static(operands[0].shape[0], "the number of sequences")
    columns = []
    for i in range(batch):
        own = [call.reshape(part(call.b, v, 0, i, i + 1), v.shape[1:]) for v in operands]
        columns.append(_scanned(call, own, body, num_scan_inputs, (), directions))
    return tuple(stacked(call, column, 0) for column in zip(*columns))


@onnx_op("Scan", since=9)
def _scan_row(
    call: Call,
    *operands: Value,
    body: GraphProto,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> tuple[Value, ...]:
    return _scanned(
        call,
        operands,
        body,
        num_scan_inputs,
        scan_input_axes,
        scan_input_directions,
        scan_output_axes,
        scan_output_directions,
    )
