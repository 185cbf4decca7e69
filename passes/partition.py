"""Put every node into a group: one group, one kernel."""

from collections import Counter
from dataclasses import dataclass

from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from . import findings
from .fusion import Fusion
from .grouping import Group, Groups
from .manager import Pass


@dataclass(frozen=True)
class Partition(Pass):
    """Values inside a group never go to memory, and each group is one launch.

    Legality comes from op kinds, profit from bytes that are not moved and launches that are not
    made. Views, and cheap values that several groups read, are copied into each of those groups.
    """

    name = "partition"

    def run(self, graph: Graph) -> Graph:
        if not graph.nodes:
            return graph
        groups = Fusion(graph).run()
        after = apply(graph, groups)
        for line in summary(after):
            findings.current().note(line)
        return after


def apply(graph: Graph, groups: Groups) -> Graph:
    """The graph with nodes in order of groups, free nodes copied into each that needs them."""
    stored: dict[Value, Value] = {v: v for v in graph.arguments()}
    nodes: list[Node] = []
    for number, group in enumerate(groups.ordered()):
        inside: dict[Value, Value] = {}
        for node in groups.members(group):
            operands = tuple(inside.get(v) or stored[v] for v in node.operands)
            results = tuple(Value(r.type) for r in node.results)
            nodes.append(Node(node.op, operands, node.attrs, results, node.loc, f"k{number}", None))
            inside.update(zip(node.results, results))
            if node in group.nodes:
                stored.update(zip(node.results, results))
    outputs = tuple(stored[v] for v in graph.outputs)
    updates = {name: stored[v] for name, v in graph.updates.items()}
    return graph.replace(nodes=tuple(nodes), outputs=outputs, updates=updates)


def group_nodes(graph: Graph) -> dict[str, list[Node]]:
    """Nodes by group, in order."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(node.group or "", []).append(node)
    return groups


def group_inputs(nodes: list[Node]) -> list[Value]:
    """Values that a group reads and does not compute, each once."""
    inside = {r for n in nodes for r in n.results}
    return list(dict.fromkeys(v for n in nodes for v in n.operands if v not in inside))


def group_outputs(graph: Graph, nodes: list[Node]) -> list[Value]:
    """Values of a group that others read or that leave the graph."""
    inside = set(nodes)
    return [
        r
        for n in nodes
        for r in n.results
        if r in graph.results or any(u not in inside for u in graph.uses.get(r, ()))
    ]


def traffic(graph: Graph, nodes: list[Node]) -> Dim:
    """Bytes that a group moves at least: what it reads (a lookup: the rows only) and writes."""
    total: Dim = 0
    tables = {_stored(n.operands[0], nodes) for n in nodes if n.op.kind == "gather"}
    states = {n.operands[0] for n in nodes if n.op.kind == "state"}
    for value in group_inputs(nodes):
        if value not in tables and value not in states and not _is_pool(graph, value):
            total = total + value.type.nbytes
    for node in nodes:
        if node.op.kind == "gather":
            width = _stored(node.operands[0], nodes).dtype.nbytes
            total = total + node.results[0].type.numel * width
    for value in group_outputs(graph, nodes):
        if not _is_pool(graph, value):
            total = total + value.type.nbytes
    return total


def _stored(value: Value, nodes: list[Node]) -> Value:
    """What `value` is a view or a cast of, outside the group."""
    while value.node in nodes and value.node is not None and len(value.node.operands) == 1:
        value = value.node.operands[0]
    return value


def _is_pool(graph: Graph, value: Value) -> bool:
    return value in graph.states or (value.node is not None and value.node.op.kind == "state")


def kind_of(nodes: list[Node]) -> str:
    """The template of a group."""
    kinds = {n.op.kind for n in nodes}
    for kind in ("contract", "attention", "sample", "scan"):
        if kind in kinds:
            return kind
    return "reduce" if kinds & {"reduce", "composite"} else "pointwise"


def summary(graph: Graph) -> list[str]:
    """How many groups of each template, and the bytes they move at the likely sizes."""
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for nodes in group_nodes(graph).values():
        kind = kind_of(nodes)
        count[kind] += 1
        moved[kind] += graph.facts.hint(traffic(graph, nodes))
    return [f"{count[k]} {k} groups, {moved[k]:,} bytes" for k in sorted(count)]


__all__ = ["Group", "Partition", "apply", "group_inputs", "group_nodes", "group_outputs", "traffic"]
