"""Which nodes depend on weights and constants only: they can be computed once, at build time."""

from .dim import Expr
from .graph import Graph, Node, Value


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


def is_view_of_weight(graph: Graph, value: Value) -> bool:
    """Whether `value` is a weight, or a view of one."""
    while value.node is not None and value.node.op.kind == "view" and len(value.node.operands) == 1:
        value = value.node.operands[0]
    return graph.is_weight(value)


def decodes(graph: Graph, node: Node) -> bool:
    """Whether cheap arithmetic makes floats of integer weights that take fewer bytes than those.

    It is then done wherever the floats are read, and they are stored nowhere.
    """
    result = node.results[0]
    leaves, has_codes = _leaves(result)
    sizes = [leaf.type.nbytes for leaf in leaves if graph.is_weight(leaf)]
    made = result.type.nbytes
    if not has_codes or len(sizes) < len(leaves) or not isinstance(made, int):
        return False
    return sum(n for n in sizes if isinstance(n, int)) < made


def _leaves(value: Value) -> tuple[list[Value], bool]:
    """What cheap arithmetic and views make `value` of; and whether integers became floats there."""
    leaves: list[Value] = []
    seen, stack, has_codes = {value}, [value], False
    while stack:
        made = stack.pop()
        node = made.node
        if (
            node is None
            or node.op.kind not in ("view", "elementwise")
            or (node.op.cost == "expensive")
        ):
            leaves.append(made)
            continue
        for operand in node.operands:
            has_codes = has_codes or (operand.dtype.is_integer and made.dtype.is_float)
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return leaves, has_codes


def hoisted(graph: Graph) -> Graph:
    """`graph` with weight-only nodes and sources first, so that any node may use any of them."""
    first = weight_only(graph)
    early = [n for n in graph.nodes if n in first or n.op.kind == "source"]
    late = [n for n in graph.nodes if not (n in first or n.op.kind == "source")]
    return graph.replace(nodes=(*early, *late))
