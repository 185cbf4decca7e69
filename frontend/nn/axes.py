"""Parts of axes."""

from ...ir.builder import Builder
from ...ir.dim import Dim
from ...ir.graph import Value


def part(b: Builder, x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    """x[start:stop] along axis; x itself when that is all of it."""
    if start == 0 and stop == x.shape[axis]:
        return x
    return b.slice(x, axis=axis, start=start, stop=stop)


def reversed_axis(b: Builder, x: Value, axis: int) -> Value:
    """X from the end of the axis to its start."""
    size = x.shape[axis]
    return b.gather(x, b.iota(length=size, start=size - 1, step=-1), axis=axis)
