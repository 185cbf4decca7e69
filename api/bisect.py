"""Where a program's numbers leave the reference's: in which pass, or in which kernel."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from .. import passes
from ..codegen.build import buffer_names
from ..ir.builder import Builder
from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Node, Value
from ..ir.plan import Plan
from ..ir.target import Target
from ..ir.text import print_node, value_names
from ..passes import Pass
from ..passes.differential import TOLERANCE, Differential, NumbersMoved
from ..passes.random_inputs import bindings, random_arguments
from ..passes.rounding import expected
from ..runtime.executable import Executable
from .compile_graph import compile_graph
from .machine import open_device

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Suspect:
    """The first place where numbers moved by more than they may.

    stage: "import", "pass" or "kernel"; name: which; value: its first value that moved, as text;
    error: how far, bound: how far it may. A kernel is compared with the reference of its own nodes
    on what it was really given; its error is a multiple of what rounding may do, and the bound 1.
    """

    stage: str
    name: str
    value: str
    error: float
    bound: float
    loc: str | None = None

    def __str__(self) -> str:
        where = f", from {self.loc}" if self.loc else ""
        return (
            f"{self.stage} {self.name}: off by {self.error:.3g}, allowed {self.bound:.3g}{where}"
            f"\n  {self.value}"
        )


def bisect(
    graph: Graph,
    weights: Arrays,
    pipeline: Sequence[Pass],
    target: Target,
    arguments: Arrays,
) -> Suspect | None:
    """The first pass, else the first kernel, that moves numbers; None where none does.

    `arguments` are inputs and states of `graph`. After a pass that changes what a graph takes,
    random ones take their place.
    """
    differential = Differential(graph, arguments=arguments, weights=weights)
    try:
        result = passes.run(graph, pipeline, check=1, differential=differential)
    except NumbersMoved as moved:
        return Suspect("pass", moved.moved_by, moved.value, moved.error, TOLERANCE)
    made = compile_graph(graph, weights, pipeline, target)
    plan = made.plan
    taken = [v.name or "" for v in (*plan.graph.inputs, *plan.graph.states)]
    if not set(taken) <= arguments.keys():
        arguments = random_arguments(plan.graph, bindings(plan.graph)[1], 1.0, seed=0)
    stored: Arrays = weights
    if result.prepare is not None:  # rounded as they are stored
        outputs, _ = evaluate(result.prepare, {}, weights, precision=None)
        stored = {v.name or "": a for v, a in zip(result.graph.weights, outputs, strict=True)}
    executable = Executable(
        made.program,
        made.weights,
        open_device(target),
        sizes=_sizes_of_states(plan.graph, arguments),
        states={v.name: arguments[v.name or ""] for v in plan.graph.states},
    )
    return first_wrong_kernel(plan, executable, arguments, stored)


def first_wrong_kernel(
    plan: Plan, executable: Executable, arguments: Arrays, weights: Arrays
) -> Suspect | None:
    """The first group whose kernel does not give what the reference gives for the same operands.

    `executable` runs the plan's program; its states hold those of `arguments`.
    """
    graph = plan.graph
    names, shown = buffer_names(graph), value_names(graph)
    content = {v: np.asarray(arguments[v.name or ""]) for v in (*graph.inputs, *graph.states)}
    inputs = [arguments[v.name or ""] for v in graph.inputs]
    steps = executable.trace(*inputs, names=set(names.values()))
    for group, traced in groupby(steps, lambda each: _group_of(each[0].name)):
        sizes: Mapping[str, int] = {}
        written: dict[str, np.ndarray] = {}
        for _, known, arrays in traced:
            sizes = known
            written.update(arrays)
        nodes = plan.groups.get(group, ())  # none where a state is written back
        made = [r for node in nodes for r in node.results if names[r] in written]
        part, outside = _part(graph, nodes, made, sizes)
        for value in outside:
            if value not in content:
                content[value] = np.asarray(weights[value.name or ""])
        given = {v.name or "": content[o] for v, o in zip(part.inputs, outside)}
        for value, wanted in zip(made, expected(part, given, {}, sizes=sizes)):
            excess = wanted.excess(written[names[value]])
            node = value.node
            if excess > 1 and node is not None:
                text = print_node(node, shown)
                return Suspect("kernel", group, text, excess, 1.0, node.loc)
        content.update((value, written[names[value]]) for value in made)
    return None


def _group_of(step: str) -> str:
    """The group that a step belongs to: its name, and then what tells it from others."""
    found = re.match(r"\w+", step)
    return found[0] if found else step


def _part(
    graph: Graph, nodes: Sequence[Node], results: Sequence[Value], sizes: Mapping[str, int]
) -> tuple[Graph, list[Value]]:
    """The nodes as a graph of their own, of dims that have sizes, and the values that it takes."""
    b = Builder("part", (s for s in graph.symbols.values() if s.name in sizes))
    inner: dict[Value, Value] = {}
    outside: list[Value] = []
    for node in nodes:
        for operand in node.operands:
            if operand not in inner:
                outside.append(operand)
                inner[operand] = b.input(f"x{len(outside)}", operand.shape, operand.dtype)
        copied = b.node(node.op, [inner[v] for v in node.operands], node.attrs)
        inner.update(zip(node.results, copied.results))
    return b.graph(inner[v] for v in results), outside


def _sizes_of_states(graph: Graph, arguments: Arrays) -> dict[str, int]:
    """Symbols that are sizes of states, such as the number of pages."""
    return {
        str(dim): size
        for state in graph.states
        for dim, size in zip(state.shape, np.shape(arguments[state.name or ""]))
        if str(dim) in graph.symbols
    }
