"""Where a rewrite went wrong: the first value of one graph that another graph does not have."""

from collections.abc import Callable, Mapping

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Value

Arrays = Mapping[str, np.ndarray]


def first_moved(
    before: tuple[Graph, Arrays],
    after: tuple[Graph, Arrays],
    arguments: Arrays,
    result: Value,
    is_same: Callable[[np.ndarray, np.ndarray], bool],
) -> Value | None:
    """On the way to `result`, the first value of `after` that no value of `before` is the same as.

    All that it is computed from are in both. Each graph comes with its weights. None where there is
    no such value: then `result` itself stands for another value of `before`.
    """
    known: dict[tuple[int, ...], list[np.ndarray]] = {}
    for array in _values(*before, arguments).values():
        known.setdefault(array.shape, []).append(array)
    graph, values = after[0], _values(*after, arguments)
    moved: set[Value] = set()
    reached = {result}
    for node in reversed(graph.nodes):
        for value in node.results:
            if value in reached and not any(
                is_same(values[value], other) for other in known.get(values[value].shape, ())
            ):
                moved.add(value)
                reached.update(node.operands)
    for node in graph.nodes:
        if moved.isdisjoint(node.operands):
            for value in node.results:
                if value in moved:
                    return value
    return None


def _values(graph: Graph, weights: Arrays, arguments: Arrays) -> dict[Value, np.ndarray]:
    """What the reference gives for every node."""
    every = tuple(value for node in graph.nodes for value in node.results)
    states = {v.name or "": arguments[v.name or ""] for v in graph.states}
    arrays, _ = evaluate(graph.replace(outputs=every), arguments, weights, states)
    return dict(zip(every, arrays, strict=True))
