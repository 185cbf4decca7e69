"""Loops whose bodies are written in Python: functions that build what one time does.

A function gets the builder of its sub-graph and values in there, in the order of the operands. It
reads no values from outside.
"""

from collections.abc import Callable, Sequence

from ...ir.builder import Builder
from ...ir.graph import Graph, Value

Step = Callable[..., tuple[Value, ...]]


def scanned(
    b: Builder,
    step: Step,
    states: Sequence[Value],
    slices: Sequence[Value],
    others: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """The op `scan`: step(builder, *states, *slices, *others) once for each slice along axis 0.

    step gives new states, and then what is stacked. A single step is no loop.
    """
    if slices[0].shape[0] == 1:
        rows = [b.reshape(s, shape=s.shape[1:]) for s in slices]
        found = step(b, *states, *rows, *others)
        stacked = [b.reshape(v, shape=(1, *v.shape)) for v in found[len(states) :]]
        return *found[: len(states)], *stacked
    types = [v.type for v in states], [s.type.with_shape(s.shape[1:]) for s in slices]
    body = _graph(b, step, [*types[0], *types[1], *(v.type for v in others)])
    counts = {"carried": len(states), "stacked": len(slices), "count": slices[0].shape[0]}
    return many(b.scan(*states, *slices, *others, **counts, body=body))


def repeated(
    b: Builder, goes_on: Step, step: Step, states: Sequence[Value], others: Sequence[Value] = ()
) -> tuple[Value, ...]:
    """The op `while_loop`: the states, replaced by step's as long as goes_on gives true.

    Both are called with (builder, *states, *others); goes_on gives a tuple of one bool.
    """
    types = [v.type for v in (*states, *others)]
    graphs = {"condition": _graph(b, goes_on, types), "body": _graph(b, step, types)}
    return many(b.while_loop(*states, *others, carried=len(states), **graphs))


def _graph(b: Builder, function: Step, types: Sequence) -> Graph:
    inner = Builder("step", b.symbols.values())
    inputs = [inner.input(f"x{i}", type.shape, type.dtype) for i, type in enumerate(types)]
    return inner.graph(function(inner, *inputs))


def many(results: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    """The results of an op that has any number of them."""
    return results if isinstance(results, tuple) else (results,)
