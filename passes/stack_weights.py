"""The two weights of a gated product lie one behind the other, as one weight."""

from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.graph import Graph, Node, Value
from . import findings
from .manager import Pass
from .merge_projections import stacked
from .rewrite import remove_dead


@dataclass(frozen=True)
class StackWeights(Pass):
    """gated_linear(x, gate, up)  ->  gated_linear(x, both[:n], both[n:]), both = concat(gate, up)

    For devices that copy a tile of both by one instruction, and multiply it as one. The weight is
    made when a program is built; the halves are read where they lie.
    """

    name = "stack-weights"

    def run(self, graph: Graph) -> Graph:
        chosen = [n for n in graph.nodes if n.op.name == "gated_linear" and _may_stack(graph, n)]
        if not chosen:
            return graph
        b = Rebuilder(graph)
        for node in graph.nodes:
            if node not in chosen:
                b.copy(node)
                continue
            x, *weights = node.operands
            with b.at(node.loc):
                both = stacked(b, [b[w] for w in weights])
                rows = weights[0].shape[0]
                halves = [
                    b.slice(both, axis=0, start=i * rows, stop=(i + 1) * rows) for i in range(2)
                ]
                b[node.results[0]] = b.gated_linear(b[x], *halves, **node.attrs)
            findings.current().fire("stacked")
        return remove_dead(b.finish())


def _may_stack(graph: Graph, node: Node) -> bool:
    """Whether both are weights of one type that nothing else reads: they would be stored twice."""
    _, gate, up = node.operands
    return gate.type == up.type and all(_is_own(graph, w) for w in (gate, up))


def _is_own(graph: Graph, value: Value) -> bool:
    while len(graph.uses.get(value, ())) == 1 and value not in graph.results:
        if value.node is None:
            return graph.is_weight(value)
        if not value.node.op.is_cast:
            return False
        (value,) = value.node.operands
    return False
