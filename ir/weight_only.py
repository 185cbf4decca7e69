"""Which nodes depend on weights and constants only: they can be computed once, at build time."""

from collections.abc import Callable

from .graph import Graph, Node, Value, symbols_in


def weight_only(graph: Graph, but: Callable[[Node], bool] = lambda node: False) -> set[Node]:
    """Nodes that read weights (and static constants) but no input, state, dim, or result of `but`.

    Sources are not among them by themselves; a computation over static sources is.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op.may_recompute and node.op.kind != "source" and is_static(node):
            if all(_is_known(graph, v, found) for v in node.operands) and not but(node):
                found.add(node)
    return found


def is_weight_only(graph: Graph, value: Value, nodes: set[Node]) -> bool:
    """Whether `value` is a weight or made by one of `nodes` (from `weight_only`)."""
    return graph.is_weight(value) or (value.node is not None and value.node in nodes)


def _is_known(graph: Graph, value: Value, found: set[Node]) -> bool:
    node = value.node
    is_constant = node is not None and node.op.kind == "source" and is_static(node)
    return is_constant or is_weight_only(graph, value, found)


def is_static(node: Node) -> bool:
    """Whether no symbol occurs in the node's results, its attributes or its sub-graphs."""
    return not symbols_in(node)


def weights_inside(graph: Graph, node: Node, region: Graph) -> dict[Value, Value]:
    """Inputs of a sub-graph that are weights of `graph`, which is around it -> those weights.

    What a loop carries or takes a slice of changes from one time to the next.
    """
    given = node.operands[len(node.operands) - len(region.inputs) :]
    changing = node.attrs.get("carried", 0) + node.attrs.get("stacked", 0)
    pairs = list(zip(region.inputs, given))[changing:]
    return {inner: outer for inner, outer in pairs if graph.is_weight(outer)}


def with_weights(graph: Graph, node: Node, region: Graph) -> Graph:
    """A sub-graph that has as weights those of its inputs that are weights of `graph`."""
    weights = weights_inside(graph, node, region)
    inputs = tuple(v for v in region.inputs if v not in weights)
    return region.replace(inputs=inputs, weights=tuple(weights)) if weights else region


def is_view_of_weight(graph: Graph, value: Value) -> bool:
    """Whether `value` is a weight, or a view of one."""
    while value.node is not None and value.node.op.kind == "view" and len(value.node.operands) == 1:
        value = value.node.operands[0]
    return graph.is_weight(value)


def decoding(graph: Graph) -> set[Node]:
    """Cheap arithmetic that makes floats of integer weights which take fewer bytes than those.

    It is done wherever the floats are read, and they are stored nowhere.
    """
    found: set[Node] = set()
    # what a value is made of by cheap arithmetic and views; whether integers became floats there
    made: dict[Value, tuple[frozenset[Value], bool]] = {
        w: (frozenset((w,)), False) for w in graph.weights
    }
    for node in graph.nodes:
        result, *others = node.results
        if node.op.kind == "source" and is_static(node):
            made[result] = frozenset(), False
        is_cheap = node.op.kind in ("view", "elementwise") and node.op.cost != "expensive"
        if others or not (is_cheap or node.op.decodes):
            continue
        if not all(v in made for v in node.operands) or not is_static(node):
            continue
        turned = any(v.dtype.is_integer and result.dtype.is_float for v in node.operands)
        leaves = frozenset().union(*(made[v][0] for v in node.operands))
        has_codes = turned or any(made[v][1] for v in node.operands)
        made[result] = leaves, has_codes
        if has_codes and sum(_bytes(leaf) for leaf in leaves) < _bytes(result):
            found.add(node)
    return found


def _bytes(value: Value) -> int:
    count = value.type.nbytes
    assert isinstance(count, int), "what is made of weights alone is static"
    return count


def hoisted(graph: Graph, nodes: set[Node]) -> Graph:
    """`graph` with `nodes` (from `weight_only`) and sources first: any node may use any of them."""
    in_order = sorted(graph.nodes, key=lambda n: n not in nodes and n.op.kind != "source")
    return graph.replace(nodes=tuple(in_order))
