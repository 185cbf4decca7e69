"""Sequences, which are lists of values, and optionals, of which None is the empty one.

How many tensors a sequence has is known while the model is imported.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto

from ....ir.graph import Value
from ....ir.op import normalize_axis
from ...declined import Declined
from ...nn.pad import pieces
from ..operators import Call, known, onnx_op
from .control import stacked


def _place(call: Call, position: Value | None, size: int, default: int) -> int:
    """A position from the front; ones below 0 count from the end."""
    place = default if position is None else int(call.constant(position).reshape(()))
    found = place + size if place < 0 else place
    if not 0 <= found <= size:
        raise Declined(f"position {place} in a sequence of {size}")
    return found


@onnx_op("SequenceEmpty")
def _empty(call: Call, *, dtype: int = 1) -> list[Value]:
    return []


@onnx_op("SequenceConstruct")
def _construct(call: Call, *values: Value) -> list[Value]:
    return list(values)


@onnx_op("SequenceAt")
def _at(call: Call, sequence: list[Value], position: Value) -> Any:
    place = _place(call, position, len(sequence), 0)
    if place == len(sequence):
        raise Declined(f"position {place} in a sequence of {place}")
    return sequence[place]


@onnx_op("SequenceInsert")
def _insert(
    call: Call, sequence: list[Value], value: Value, position: Value | None = None
) -> list[Value]:
    place = _place(call, position, len(sequence), len(sequence))
    return [*sequence[:place], value, *sequence[place:]]


@onnx_op("SequenceErase")
def _erase(call: Call, sequence: list[Value], position: Value | None = None) -> list[Value]:
    place = _place(call, position, len(sequence), -1)
    return [*sequence[:place], *sequence[place + 1 :]]


@onnx_op("SequenceLength")
def _length(call: Call, sequence: list[Value]) -> Value:
    return known(np.array(len(sequence)))


@onnx_op("SplitToSequence")
def _split(
    call: Call, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: bool = True
) -> list[Value]:
    axis = call.axis(axis, x)
    size = call.static(x.shape[axis], "the size that is split")
    sizes: Sequence[int] = (1,) * size
    if split is not None:
        given = [call.static(n, "a size of a part") for n in call.sizes(split)]
        if split.type.rank:
            sizes = given
        else:
            whole, rest = divmod(size, given[0])
            sizes = (*(given[0],) * whole, *(rest,) * bool(rest))
    if sum(sizes) != size:
        raise Declined(f"parts of {list(sizes)} of an axis of {size}")
    parts = pieces(call.b, x, axis, sizes)
    if split is not None or keepdims:
        return parts
    return [call.reshape(v, (*x.shape[:axis], *x.shape[axis + 1 :])) for v in parts]


@onnx_op("ConcatFromSequence")
def _concat(call: Call, sequence: list[Value], *, axis: int, new_axis: bool = False) -> Value:
    if not sequence:
        raise Declined("the concatenation of no tensors")
    rank = sequence[0].type.rank
    if new_axis:
        return stacked(call, sequence, normalize_axis(axis, rank + 1))
    return call.b.concat(*sequence, axis=axis)


@onnx_op("SequenceMap")
def _map(call: Call, sequence: list[Value], *others: Any, body: GraphProto) -> tuple[list, ...]:
    rows = []
    for i, value in enumerate(sequence):
        own = [v[i] if isinstance(v, list) else v for v in others]
        rows.append(call.inline(body, [value, *own]))
    columns = zip(*rows) if rows else ((),) * len(body.output)
    return tuple(list(column) for column in columns)


# ---- optionals -------------------------------------------------------------------------------


@onnx_op("Optional")
def _optional(call: Call, value: Any = None, *, type: Any = None) -> Any:
    return value


@onnx_op("OptionalHasElement")
def _has_element(call: Call, value: Any = None) -> Value:
    return known(np.array(value is not None))


@onnx_op("OptionalGetElement")
def _element(call: Call, value: Any) -> Any:
    if value is None:
        raise Declined("the element of an optional that has none")
    return value
