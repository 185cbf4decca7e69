"""Put every node into a group: one group, one kernel."""

from collections import Counter

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
    count = Counter(kind_of(*nodes).name for nodes in plan.groups.values())
    for name in sorted(count):
        findings.note(f"{count[name]} {name} groups")
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
