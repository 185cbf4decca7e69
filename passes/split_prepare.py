"""Move what depends on weights only into a graph of its own, run once when a program is built."""

from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.graph import Graph, Node, Value
from . import findings
from .manager import Pass
from .rewrite import remove_dead
from .weight_only import weight_only

MAX_EXPANDED = 1 << 20  # elements; a larger broadcast is repeated when read, not stored


@dataclass(frozen=True)
class SplitPrepare(Pass):
    """Concatenating, casting and transposing weights at every step would double what is read.

    The pass reports a *prepare graph*: no inputs, the original weights, and one output for each
    weight of the graph it returns, in order. A cast to a wider dtype stays at the use: stored
    narrow, a weight is read narrow.
    """

    name = "split-prepare"

    def run(self, graph: Graph) -> Graph:
        nodes = preparable(graph)
        frontier = _frontier(graph, nodes)
        if not frontier:
            findings.current().prepare = prepare_graph(graph, graph.weights)
            return graph
        names = _names(graph, frontier)
        b = Rebuilder(graph)
        for value in frontier:
            b[value] = b.weight(names[value], value.shape, value.dtype)
        for node in graph.nodes:
            if node not in nodes:
                b.copy(node)
            else:
                for result in node.results:
                    if result not in b:
                        b[result] = result  # read only inside the prepare graph
        after = remove_dead(b.finish())
        read = {v for node in after.nodes for v in node.operands} | after.results
        after = after.replace(weights=tuple(w for w in after.weights if w in read))
        made = {b[v]: v for v in frontier}
        findings.current().prepare = prepare_graph(
            graph, tuple(made.get(w, w) for w in after.weights)
        )
        findings.current().fired["prepared weight"] += len(frontier)
        return after


def preparable(graph: Graph) -> set[Node]:
    """Weight-only nodes that are worth computing at build time."""
    candidates = weight_only(graph)
    found: set[Node] = set()
    for node in graph.nodes:
        if node not in candidates or _stays(node):
            continue
        if all(
            graph.is_weight(v) or v.node in found or (v.node and v.node.op.kind == "source")
            for v in node.operands
        ):
            found.add(node)
    return found


def _stays(node: Node) -> bool:
    result = node.results[0]
    if node.op.name == "cast":
        source = node.operands[0].dtype
        return source.is_float and result.dtype.is_float and source.bits < result.dtype.bits
    numel = result.type.numel
    assert isinstance(numel, int), "weight-only nodes are static"
    return node.op.name == "broadcast_to" and numel > MAX_EXPANDED


def _frontier(graph: Graph, nodes: set[Node]) -> list[Value]:
    """Values of `nodes` that are read by others or leave the graph, in order."""
    return [
        r
        for node in graph.nodes
        if node in nodes
        for r in node.results
        if r in graph.results or any(u not in nodes for u in graph.uses.get(r, ()))
    ]


def prepare_graph(graph: Graph, outputs: tuple[Value, ...]) -> Graph:
    """The graph that computes `outputs` from the original weights."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(r in needed for r in node.results):
            needed.update(node.operands)
            kept.append(node)
    weights = tuple(w for w in graph.weights if w in needed)
    nodes = tuple(reversed(kept))
    return Graph(f"{graph.name}.prepare", {}, (), weights, (), nodes, outputs)


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
    head = 0
    while all(len(p) > head + 1 and p[head] == parts[0][head] for p in parts):
        head += 1
    tail = 0
    while all(len(p) > head + tail + 1 and p[-1 - tail] == parts[0][-1 - tail] for p in parts):
        tail += 1
    middles = [".".join(p[head : len(p) - tail]) for p in parts]
    ends = parts[0][len(parts[0]) - tail :] if tail else []
    return ".".join([*parts[0][:head], "{" + ",".join(middles) + "}", *ends])
