"""Padding: with a number, or with what the axis holds."""

from typing import Any

from ...ir.dim import Dim
from ...ir.graph import Value
from ..importer import Call, Declined, handles
from .index import flipped
from .view import part


@handles("constant_pad_nd.default", "pad.default")
def _pad(
    call: Call,
    x: Value,
    pad: tuple[Dim, ...],
    *rest: Any,
    value: Any = None,
    mode: str = "constant",
) -> Value:
    # constant_pad_nd(x, pad, value=0); pad(x, pad, mode="constant", value=None)
    for extra in rest:
        mode, value = (extra, value) if isinstance(extra, str) else (mode, extra)
    for position in range(len(pad) // 2):
        axis = x.type.rank - 1 - position
        before, after = pad[2 * position], pad[2 * position + 1]
        if mode == "constant":
            x = _filled(call, x, axis, before, after, 0 if value is None else value)
        else:
            x = _extended(call, x, axis, before, after, mode)
    return x


for _axes in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        handles(f"{_name}_pad{_axes}d.default")(
            lambda call, x, pad, mode=_mode: _pad(call, x, pad, mode=mode)
        )


def _cut(call: Call, x: Value, axis: int, before: Dim, after: Dim) -> tuple[Value, Dim, Dim]:
    """X less what negative padding cuts off, and the padding that remains."""
    start, stop = 0, x.shape[axis]
    if isinstance(before, int) and before < 0:
        start, before = -before, 0
    if isinstance(after, int) and after < 0:
        stop, after = stop + after, 0
    return part(call, x, axis, start, stop), before, after


def _filled(call: Call, x: Value, axis: int, before: Dim, after: Dim, fill: Any) -> Value:
    x, before, after = _cut(call, x, axis, before, after)
    if before == 0 and after == 0:
        return x
    if isinstance(fill, Value):
        raise Declined("padding with a number that is computed: use where")
    fill = float(fill) if x.dtype.is_float else fill
    return call.b.pad(x, axis=axis, before=before, after=after, value=fill)


def _extended(call: Call, x: Value, axis: int, before: Dim, after: Dim, mode: str) -> Value:
    """X between copies of its own elements: of those at the edges, or mirrored, or wrapped."""
    if not isinstance(before, int) or not isinstance(after, int):
        raise Declined(f"padding of mode {mode!r} by {before} and {after}: must be known numbers")
    if mode == "circular":
        x, before, after = _cut(call, x, axis, before, after)
    size, front, back = x.shape[axis], max(before, 0), max(after, 0)

    def copies(count: int, first: Dim, mirrored: Dim, wrapped: Dim) -> Value:
        match mode:
            case "replicate":
                edge = part(call, x, axis, first, first + 1)
                return call.broadcast(edge, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
            case "reflect":
                return flipped(call, part(call, x, axis, mirrored, mirrored + count), axis)
            case "circular":
                return part(call, x, axis, wrapped, wrapped + count)
        raise Declined(f"padding of mode {mode!r}")

    pieces = [x]
    if front:
        pieces.insert(0, copies(front, 0, 1, size - front))
    if back:
        pieces.append(copies(back, size - 1, size - 1 - back, 0))
    whole = call.b.concat(*pieces, axis=axis) if len(pieces) > 1 else x
    # the other modes cut last: what is cut off may have been mirrored first
    start, stop = max(-before, 0), whole.shape[axis] - max(-after, 0)
    return part(call, whole, axis, start, stop)
