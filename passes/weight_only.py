"""Which nodes depend on weights and constants only: they can be computed once, at build time."""

from ..ir.dim import Expr
from ..ir.graph import Graph, Node, Value


def weight_only(graph: Graph) -> set[Node]:
    """Nodes that read weights (and static constants) but no input, state or dim.

    Sources are not among them by themselves; a computation over static sources is.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.may_recompute and node.op.kind != "source" and is_static(node):
            if all(_is_known(graph, v, found) for v in node.operands):
                found.add(node)
    return found


def is_weight_only(graph: Graph, value: Value, nodes: set[Node]) -> bool:
    """Whether `value` is a weight or made by one of `nodes` (from `weight_only`)."""
    return graph.is_weight(value) or (value.node is not None and value.node in nodes)


def _is_known(graph: Graph, value: Value, found: set[Node]) -> bool:
    if graph.is_weight(value):
        return True
    node = value.node
    return node is not None and (node in found or (node.op.kind == "source" and is_static(node)))


def is_static(node: Node) -> bool:
    """Whether no symbol occurs in the shapes of the node's results or in its attributes."""
    dims = (d for r in node.results for d in r.shape)
    return not any(isinstance(d, Expr) for d in (*dims, *node.attrs.values()))


def hoisted(graph: Graph) -> Graph:
    """`graph` with weight-only nodes and sources first, so that any node may use any of them."""
    first = weight_only(graph)
    early = [n for n in graph.nodes if n in first or n.op.kind == "source"]
    late = [n for n in graph.nodes if not (n in first or n.op.kind == "source")]
    return graph.replace(nodes=(*early, *late))
