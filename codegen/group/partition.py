"""Put every node into a group: one group, one kernel."""

from collections import Counter
from collections.abc import Sequence

from ...ir.dim import Dim
from ...ir.graph import Graph, Node, Value
from ...ir.plan import Plan
from ...ir.report import Findings
from ...ir.target import TARGETS, Target
from ..groups import Groups
from .fusion import Fusion, kind_of


def partition(graph: Graph, findings: Findings, target: Target = TARGETS["cpu"]) -> Plan:
    """Values inside a group never go to memory, and each group is one launch.

    Legality comes from op kinds, profit from bytes that are not moved and launches that are not
    made, at the target's rates. Views, and cheap values that several groups read, are copied into
    each of those groups.
    """
    plan = arranged(graph, Fusion(graph, findings, target).run())
    for line in summary(plan):
        findings.note(line)
    return plan


def arranged(graph: Graph, groups: Groups) -> Plan:
    """The graph with nodes in order of groups, free nodes copied into each that needs them."""
    stored: dict[Value, Value] = {v: v for v in graph.arguments()}
    made: dict[str, tuple[Node, ...]] = {}
    for number, group in enumerate(groups.ordered()):
        inside: dict[Value, Value] = {}
        copies: list[Node] = []
        for node in groups.members(group):
            operands = tuple(inside.get(v) or stored[v] for v in node.operands)
            results = tuple(Value(r.type) for r in node.results)
            copies.append(Node(node.op, operands, node.attrs, results, node.loc))
            inside.update(zip(node.results, results))
            if node in group.nodes:
                stored.update(zip(node.results, results))
        made[f"k{number}"] = tuple(copies)
    outputs = tuple(stored[v] for v in graph.outputs)
    updates = {name: stored[v] for name, v in graph.updates.items()}
    nodes = tuple(node for copies in made.values() for node in copies)
    return Plan(graph.replace(nodes=nodes, outputs=outputs, updates=updates), made)


def group_inputs(nodes: Sequence[Node]) -> list[Value]:
    """Values that a group reads and does not compute, each once."""
    inside = {r for n in nodes for r in n.results}
    return list(dict.fromkeys(v for n in nodes for v in n.operands if v not in inside))


def traffic(plan: Plan, name: str) -> Dim:
    """Bytes that a group moves at least: what it reads (a lookup: the rows only) and writes."""
    graph, nodes = plan.graph, plan.groups[name]
    total: Dim = 0
    tables = {_stored(n.operands[0], nodes) for n in nodes if n.op.kind == "gather"}
    states = {n.operands[0] for n in nodes if n.op.kind == "state"}
    for value in group_inputs(nodes):
        if value not in tables and value not in states and not _is_pool(graph, value):
            total = total + value.type.nbytes
    for node in nodes:
        if node.op.kind == "gather":
            dtype = _stored(node.operands[0], nodes).dtype
            total = total + dtype.size(node.results[0].type.numel)
    for value in plan.results_of(name):
        if not _is_pool(graph, value):
            total = total + value.type.nbytes
    return total


def _stored(value: Value, nodes: Sequence[Node]) -> Value:
    """What `value` is a view or a cast of, outside the group."""
    while value.node in nodes and value.node is not None and len(value.node.operands) == 1:
        value = value.node.operands[0]
    return value


def _is_pool(graph: Graph, value: Value) -> bool:
    return value in graph.states or (value.node is not None and value.node.op.kind == "state")


def summary(plan: Plan) -> list[str]:
    """How many groups of each template, and the bytes they move at the likely sizes."""
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for name, nodes in plan.groups.items():
        kind = kind_of(*nodes).name
        count[kind] += 1
        moved[kind] += plan.graph.facts.hint(traffic(plan, name))
    return [f"{count[k]} {k} groups, {moved[k]:,} bytes" for k in sorted(count)]
