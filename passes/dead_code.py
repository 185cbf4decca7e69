"""Drop what nobody reads."""

from dataclasses import dataclass

from ..ir.graph import Graph
from . import findings
from .manager import Pass
from .rewrite import drop_unread_weights, remove_dead


@dataclass(frozen=True)
class DeadCode(Pass):
    """Nodes without a reader, and weights no node takes, cost memory and compile time."""

    name = "dead-code"
    weights: bool = True  # also drop weights that nothing reads

    def run(self, graph: Graph) -> Graph:
        after = remove_dead(graph)
        if gone := len(graph.nodes) - len(after.nodes):
            findings.current().fired["dead node"] += gone
        if self.weights:
            after = drop_unread_weights(after)
        if gone := len(graph.weights) - len(after.weights):
            findings.current().fired["unread weight"] += gone
        return after
