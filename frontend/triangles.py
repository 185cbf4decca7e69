"""Buffers that hold a triangle: the comparison of positions that they are, in their place.

Models of older make keep a causal mask as a table as large as their longest sequence, square.
"""

from collections.abc import Collection

import numpy as np

from ..ir.builder import Builder, Rebuilder
from ..ir.graph import Graph, Value
from ..ir.lazy_arrays import LazyArrays
from ..ir.types import bool_, i64


def compared(graph: Graph, arrays: LazyArrays, buffers: Collection[str]) -> Graph:
    """The graph without buffers [1, ..., N, N] that are 1 where j <= i and i - j < window, else 0.

    All their elements are looked at. i numbers the rows, j the columns; the window may be N.
    """
    found: dict[Value, int] = {}
    for weight in graph.weights:
        name, shape = str(weight.name), weight.shape
        if name in buffers and len(shape) >= 2 and shape[-1] == shape[-2] != 1:
            if all(d == 1 for d in shape[:-2]) and (window := _window(arrays[name])):
                found[weight] = window
    if not found:
        return graph
    b = Rebuilder(graph)
    b.weights = [weight for weight in b.weights if weight not in found]
    for weight, window in found.items():
        b[weight] = _comparison(b, weight, window)
    for node in graph.nodes:
        b.copy(node)
    return b.finish()


def _window(table: np.ndarray) -> int | None:
    table = table.reshape(table.shape[-2:])
    size, window = len(table), int(np.count_nonzero(table[-1]))
    triangle = np.tri(size, dtype=bool) & ~np.tri(size, k=-window, dtype=bool)
    return window if window and np.array_equal(table, triangle) else None


def _comparison(b: Builder, weight: Value, window: int) -> Value:
    size = weight.shape[-1]
    column = b.iota(length=size, dtype=i64)
    row = b.reshape(column, shape=(size, 1))
    seen = b.le(column, row)
    if window < size:
        seen = b.and_(seen, b.gt(column, b.sub(row, b.constant(window, i64))))
    seen = b.reshape(seen, shape=weight.shape)
    return seen if weight.dtype is bool_ else b.cast(seen, dtype=weight.dtype)
