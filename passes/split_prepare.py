"""Move what depends on weights only into a graph of its own, run once when a program is built."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from ..ir.builder import Rebuilder
from ..ir.dim import evaluate as evaluate_dim
from ..ir.graph import Graph, Node, Value
from ..ir.weight_only import decoding, is_view_of_weight, weight_only
from . import findings
from .manager import Outcome, Pass
from .rewrite import drop_unread_weights, remove_dead

MAX_EXPANDED = 1 << 20  # elements; a larger broadcast is repeated when read, not stored


@dataclass(frozen=True)
class SplitPrepare(Pass):
    """Concatenating, casting and transposing weights at every step would double what is read.

    The pass makes a *prepare graph*: no inputs, the original weights, and one output for each
    weight of the graph it returns, in order. A cast to a wider dtype stays at the use: stored
    narrow, a weight is read narrow. So does what makes numbers of codes, where codes take less.
    """

    name = "split-prepare"

    def outcome(self, graph: Graph) -> Outcome:
        stays, frontier = decide(graph)
        if not frontier:
            return Outcome(graph, prepare_graph(graph, graph.weights))
        names = _names(graph, frontier)
        b = Rebuilder(graph)
        for value in frontier:
            b[value] = b.weight(names[value], value.shape, value.dtype)
        for node in graph.nodes:
            if node in stays:
                b.copy(node)
        after = drop_unread_weights(remove_dead(b.finish()))
        made = {b[v]: v for v in frontier}
        findings.current().fired["prepared weight"] += len(frontier)
        prepare = prepare_graph(graph, tuple(made.get(w, w) for w in after.weights))
        return Outcome(after, prepare)


def decide(graph: Graph) -> tuple[set[Node], list[Value]]:
    """The nodes that the graph keeps, and what they read of those that are computed ahead of time.

    A node that widens a stored weight is kept, and views around that: storing what they make would
    store the weight wide. A transpose in front is made ahead where nothing else reads the weight.
    """
    moved, kept = _moved(graph)
    stays = {n for n in graph.nodes if n not in moved or n in kept}
    return stays, _frontier(graph, moved - kept, stays)


def _moved(graph: Graph) -> tuple[set[Node], set[Node]]:
    """Nodes to compute ahead of time, and those of them that the graph computes itself as well."""
    moved = weight_only(graph, but=_expands)
    kept: set[Node] = set()
    decodes = decoding(graph)
    for node in reversed(graph.nodes):
        if node not in moved:
            continue
        result = node.results[0]
        readers = graph.uses.get(result, ())
        is_read = result in graph.results or any(u not in moved or u in kept for u in readers)
        takes_less = is_read and (_is_widened(node) or node in decodes)
        is_view = is_view_of_weight(graph, result) and readers and kept.issuperset(readers)
        if (
            takes_less
            or (is_read and _is_part(graph, node, moved))
            or (is_view and not _takes_place(graph, node, moved - kept))
        ):
            kept.add(node)
    return moved, kept


def _is_part(graph: Graph, node: Node, ahead: set[Node]) -> bool:
    """A part of what is computed ahead of time: it is read where it lies."""
    if node.op.kind != "view" or len(node.operands) != 1:
        return False
    whole, part = node.operands[0], node.results[0]
    return (
        whole.node is not None
        and whole.node in ahead
        and not is_view_of_weight(graph, whole)
        and part.type.numel != whole.type.numel
        and part.shape[1:] == whole.shape[1:]
    )


def _takes_place(graph: Graph, node: Node, ahead: set[Node]) -> bool:
    """Whether the weight in another order can be stored in place of the weight.

    What is computed `ahead` of time reads the original.
    """
    weight = node.operands[0]
    is_alone = graph.is_weight(weight) and all(u is node or u in ahead for u in graph.uses[weight])
    return node.op.name == "transpose" and is_alone and not weight.dtype.is_packed


def _expands(node: Node) -> bool:
    # weight-only nodes are static
    numel = evaluate_dim(node.results[0].type.numel, {})
    read = sum(evaluate_dim(v.type.numel, {}) for v in node.operands)
    return node.op.kind == "view" and numel > MAX_EXPANDED and numel >= 2 * read


def _is_widened(node: Node) -> bool:
    """A cast of a float or an integer to a wider one, or a view of such a cast."""
    while node.op.is_renaming:
        inner = node.operands[0].node
        if inner is None:
            return False
        node = inner
    if not node.op.is_cast:
        return False
    source, target = node.operands[0].dtype, node.results[0].dtype
    same = (source.is_float, source.is_integer) == (target.is_float, target.is_integer)
    return same and source.bits < target.bits


def _frontier(graph: Graph, made: set[Node], stays: set[Node]) -> list[Value]:
    """Values of `made` that nodes of `stays` read or that leave the graph, in order."""
    return [
        r
        for node in graph.nodes
        if node in made
        for r in node.results
        if r in graph.results or any(u in stays for u in graph.uses.get(r, ()))
    ]


def prepare_graph(graph: Graph, outputs: tuple[Value, ...]) -> Graph:
    """The graph that computes `outputs` from the original weights."""
    whole = Graph(f"{graph.name}.prepare", {}, (), graph.weights, (), graph.nodes, outputs)
    return drop_unread_weights(remove_dead(whole))


def _names(graph: Graph, frontier: list[Value]) -> dict[Value, str]:
    taken = {w.name for w in graph.weights}
    names: dict[Value, str] = {}
    for value in frontier:
        base = _joined(_sources(graph, value)) or "constant"
        name, count = f"{base}:{value.dtype}", 1
        while name in taken:
            count += 1
            name = f"{base}:{value.dtype}.{count}"
        taken.add(name)
        names[value] = name
    return names


def _sources(graph: Graph, value: Value) -> list[str]:
    """Names of the weights that `value` is made of, in order."""
    if graph.is_weight(value):
        return [value.name or ""]
    names: list[str] = []
    for operand in value.node.operands if value.node else ():
        names += [n for n in _sources(graph, operand) if n not in names]
    return names


def _joined(names: list[str]) -> str:
    """a.q.weight, a.k.weight  ->  a.{q,k}.weight"""
    if len(names) < 2:
        return "".join(names)
    parts = [n.split(".") for n in names]
    head = _shared(p[:-1] for p in parts)
    tail = _shared(p[: len(head) : -1] for p in parts)[::-1]
    middles = [".".join(p[len(head) : len(p) - len(tail)]) for p in parts]
    return ".".join([*head, "{" + ",".join(middles) + "}", *tail])


def _shared(lists: Iterable[list[str]]) -> list[str]:
    """What all begin with."""
    return [words[0] for words in takewhile(lambda words: len({*words}) == 1, zip(*lists))]
