"""Padding: with a number, or with what the axis holds."""

from collections.abc import Iterable

from ...ir.builder import Builder
from ...ir.dim import Dim
from ...ir.graph import Value
from ...ir.types import i64
from ..declined import Declined


def padded(
    b: Builder,
    x: Value,
    axis: int,
    before: Dim,
    after: Dim,
    value: float | int | bool = 0,
) -> Value:
    """X with elements of `value` before and after it along axis; negative counts cut x."""
    x, before, after = _cut(b, x, axis, before, after)
    if before == 0 and after == 0:
        return x
    return b.pad(x, axis=axis, before=before, after=after, value=value)


def extended(b: Builder, x: Value, axis: int, before: Dim, after: Dim, mode: str) -> Value:
    """X between copies of its own elements along axis.

    "replicate": of those at the ends; "reflect": mirrored at the ends, which are not repeated;
    "circular": from the other end. Refuses counts that are not known.
    """
    if not isinstance(before, int) or not isinstance(after, int):
        raise Declined(f"padding of mode {mode!r} by {before} and {after}: must be known numbers")
    if mode == "circular":
        x, before, after = _cut(b, x, axis, before, after)
    size, front, back = x.shape[axis], max(before, 0), max(after, 0)

    def copies(count: int, first: Dim, mirrored: Dim, wrapped: Dim) -> Value:
        match mode:
            case "replicate":
                edge = part(b, x, axis, first, first + 1)
                return b.broadcast_to(edge, shape=(*x.shape[:axis], count, *x.shape[axis + 1 :]))
            case "reflect":
                return reversed_axis(b, part(b, x, axis, mirrored, mirrored + count), axis)
            case "circular":
                return part(b, x, axis, wrapped, wrapped + count)
        raise Declined(f"padding of mode {mode!r}")

    pieces = [x]
    if front:
        pieces.insert(0, copies(front, 0, 1, size - front))
    if back:
        pieces.append(copies(back, size - 1, size - 1 - back, 0))
    whole = b.concat(*pieces, axis=axis) if len(pieces) > 1 else x
    # the other modes cut last: what is cut off may have been mirrored first
    start, stop = max(-before, 0), whole.shape[axis] - max(-after, 0)
    return part(b, whole, axis, start, stop)


def reversed_axis(b: Builder, x: Value, axis: int) -> Value:
    """X from the end of the axis to its start."""
    size = x.shape[axis]
    if size == 1:
        return x
    backwards = b.iota(length=size, start=size - 1, step=-1, dtype=i64)
    return b.gather(x, backwards, axis=axis)


def part(b: Builder, x: Value, axis: int, start: Dim, stop: Dim, step: int = 1) -> Value:
    """x[start:stop:step] along axis; x itself when that is all of it."""
    if start == 0 and stop == x.shape[axis] and step == 1:
        return x
    return b.slice(x, axis=axis, start=start, stop=stop, step=step)


def pieces(b: Builder, x: Value, axis: int, sizes: Iterable[Dim]) -> list[Value]:
    """X in pieces of these sizes along axis, one behind the other from its start on."""
    found: list[Value] = []
    start: Dim = 0
    for size in sizes:
        found.append(part(b, x, axis, start, start + size))
        start = start + size
    return found


def each_repeated(b: Builder, x: Value, axis: int, times: Dim) -> Value:
    """Every element of x so many times in a row along axis."""
    if times == 1:
        return x
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread = b.reshape(x, shape=(*before, 1, *after))
    wide = b.broadcast_to(spread, shape=(*before, times, *after))
    return b.reshape(wide, shape=(*before[:-1], before[-1] * times, *after))


def _cut(b: Builder, x: Value, axis: int, before: Dim, after: Dim) -> tuple[Value, Dim, Dim]:
    """X less what negative padding cuts off, and the padding that remains."""
    start, stop = 0, x.shape[axis]
    if isinstance(before, int) and before < 0:
        start, before = -before, 0
    if isinstance(after, int) and after < 0:
        stop, after = stop + after, 0
    return part(b, x, axis, start, stop), before, after
