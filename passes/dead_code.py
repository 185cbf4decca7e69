"""Drop what nobody reads."""

from dataclasses import dataclass

from ..ir.graph import Graph
from . import findings
from .manager import Pass
from .rewrite import remove_dead


@dataclass(frozen=True)
class DeadCode(Pass):
    """Nodes without a reader, and weights no node takes, cost memory and compile time."""

    name = "dead-code"
    weights: bool = True  # also drop weights that nothing reads

    def run(self, graph: Graph) -> Graph:
        after = remove_dead(graph)
        gone = len(graph.nodes) - len(after.nodes)
        if gone:
            findings.current().fired["dead node"] += gone
        if not self.weights:
            return after
        read = {v for node in after.nodes for v in node.operands} | after.results
        kept = tuple(w for w in after.weights if w in read)
        if len(kept) == len(after.weights):
            return after
        findings.current().fired["unread weight"] += len(after.weights) - len(kept)
        return after.replace(weights=kept)
