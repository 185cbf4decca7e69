"""Plan: which kernel computes each node of a graph, and where values lie between kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .dim import Dim, ceildiv
from .errors import VerifyError
from .graph import Graph, Node, Value
from .program import ALIGNMENT


@dataclass(frozen=True)
class Plan:
    """`groups`: kernel -> its nodes, in the order of the graph, in which kernels run one by one.

    `offsets`: bytes into the arena, which has `arena_bytes`, of values that one kernel leaves for
    another. `late`: symbols that steps around the graph bind, where it is part of another graph.
    Raises VerifyError where the groups are not the graph's nodes, each once and in order.
    """

    graph: Graph
    groups: Mapping[str, tuple[Node, ...]]
    offsets: Mapping[Value, Dim] = field(default_factory=dict)
    arena_bytes: Dim = 0
    late: frozenset[str] = frozenset()

    def __post_init__(self):
        in_order = [node for nodes in self.groups.values() for node in nodes]
        if in_order != list(self.graph.nodes):
            raise VerifyError(
                "the groups of a plan are not the graph's nodes, each once and in order",
                where=f"graph @{self.graph.name}",
                facts=f"{len(in_order)} nodes in {len(self.groups)} groups, "
                f"{len(self.graph.nodes)} in the graph",
                fix="put the nodes of each group one after another",
            )

    @cached_property
    def group_of(self) -> Mapping[Node, str]:
        """The kernel that computes each node."""
        return {node: name for name, nodes in self.groups.items() for node in nodes}

    def is_late(self, value: Value) -> bool:
        """Whether the size of `value` is known only while the program runs: it has no offset."""
        late = self.late | self.graph.late_symbols
        return bool(late) and not late.isdisjoint(value.type.symbols)

    def results_of(self, name: str) -> list[Value]:
        """Values of the group that others read or that leave the graph, in order."""
        return results_of(self.graph, self.groups[name])


def results_of(graph: Graph, nodes: tuple[Node, ...]) -> list[Value]:
    """What of the nodes' results others read or leaves the graph, in order."""
    inside = set(nodes)
    return [
        r
        for node in nodes
        for r in node.results
        if r in graph.results or any(user not in inside for user in graph.uses.get(r, ()))
    ]


def aligned(nbytes: Dim) -> Dim:
    """`nbytes` rounded up to the alignment of buffers."""
    return ceildiv(nbytes, ALIGNMENT) * ALIGNMENT
