"""Products of one x with several weights become one product: q, k and v above all."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.weight_only import hoisted, is_weight_only, weight_only
from . import findings
from .manager import Pass
from .rewrite import remove_dead


@dataclass(frozen=True)
class Projection:
    """A product with a weight, with its scale and its bias: `end` is what others read."""

    matmul: Node
    end: Value
    scale: Value | None = None
    bias: Value | None = None


@dataclass(frozen=True)
class MergeProjections(Pass):
    """One launch and one pass over x in place of several; thin matrices waste a device."""

    name = "merge-projections"
    max_group: int = 8  # more products than this of one x are left alone

    def run(self, graph: Graph) -> Graph:
        known = weight_only(graph)
        groups = list(self.decide(graph, known))
        return self.apply(hoisted(graph, known), groups) if groups else graph

    def decide(self, graph: Graph, known: set[Node]) -> Iterable[list[Projection]]:
        """Groups of projections to merge; `known` are the weight-only nodes."""
        by_x: dict[Value, list[Projection]] = {}
        for node in graph.nodes:
            if node.op.name == "matmul" and is_weight_only(graph, node.operands[1], known):
                if node not in known and node.operands[1].type.rank == 2:
                    projection = _projection(graph, node, known)
                    by_x.setdefault(node.operands[0], []).append(projection)
        for group in by_x.values():
            kept = [p for p in group if not self.refused(graph, p)]
            if not all(p.scale is not None for p in kept):
                kept = [_projection(graph, p.matmul, known, scaled=False) for p in kept]
            if 1 < len(kept) <= self.max_group:
                yield kept
            elif len(kept) > self.max_group:
                reason = f"{len(kept)} products of one x, the limit is {self.max_group}"
                findings.current().decline("merge", reason)

    def refused(self, graph: Graph, p: Projection) -> bool:
        if not p.matmul.attrs["transpose_w"]:
            findings.current().decline("merge", "the weight is stored [in, out]")
            return True
        users = graph.uses.get(p.end, ())
        if len(users) == 1 and users[0].op.tree and users[0].op.cost == "expensive":
            # it ends its own product for free; on a slice every reader would repeat it
            findings.current().decline("merge", "an activation follows")
            return True
        return False

    def apply(self, graph: Graph, groups: list[list[Projection]]) -> Graph:
        """The graph with each group replaced by one product and slices of it."""
        first = {group[0].matmul: group for group in groups}
        replaced = {node for g in groups for p in g for node in _nodes(p)}
        b = Rebuilder(graph)
        for node in graph.nodes:
            if node in first:
                with b.at(node.loc):
                    _merge(b, first[node])
                findings.current().fire("merge")
            elif node not in replaced:
                b.copy(node)
        return remove_dead(b.finish())


def _projection(graph: Graph, matmul: Node, known: set[Node], *, scaled: bool = True) -> Projection:
    scale, end = _followed(graph, matmul.results[0], "mul" if scaled else "", known)
    bias, end = _followed(graph, end, "add", known)
    return Projection(matmul, end, scale, bias)


def _followed(graph: Graph, end: Value, op: str, known: set[Node]) -> tuple[Value | None, Value]:
    """The stored vector that alone is joined with `end` by `op`, and what comes of it."""
    users = graph.uses.get(end, ())
    if len(users) == 1 and users[0].op.name == op and end not in graph.results:
        others = [v for v in users[0].operands if v is not end]
        if len(others) == 1 and others[0].shape == end.shape[-1:]:
            if is_weight_only(graph, others[0], known):
                return others[0], users[0].results[0]
    return None, end


def _nodes(p: Projection) -> Iterator[Node]:
    """The product and what follows it, from the end."""
    value = p.end
    while value.node is not None and value.node is not p.matmul:
        yield value.node
        value = next(v for v in value.node.operands if v not in (p.scale, p.bias))
    yield p.matmul


def stacked(b: Rebuilder, weights: list[Value]) -> Value:
    """The rows of all; casts that all of them have come last, so that they stay stored narrow."""
    inner = [w.node.operands[0] for w in weights if w.node is not None and w.node.op.is_cast]
    if len(inner) == len(weights) and len({w.dtype for w in inner}) == 1:
        return b.cast(stacked(b, inner), dtype=weights[0].dtype)
    return b.concat(*weights, axis=0)


def _merge(b: Rebuilder, group: list[Projection]) -> None:
    matmuls = [p.matmul for p in group]
    w = stacked(b, [b[m.operands[1]] for m in matmuls])
    y = b.matmul(b[matmuls[0].operands[0]], w, transpose_w=True)
    sizes = [m.results[0].shape[-1] for m in matmuls]
    if scales := [b[p.scale] for p in group if p.scale is not None]:  # all have one, or none
        y = b.mul(y, b.concat(*scales, axis=0))
    if any(p.bias is not None for p in group):
        parts = [
            b.full(value=0.0, shape=(n,), dtype=y.dtype) if p.bias is None else b[p.bias]
            for p, n in zip(group, sizes)
        ]
        y = b.add(y, b.concat(*parts, axis=0))
    start: Dim = 0
    for p, n in zip(group, sizes):
        b[p.end] = b.slice(y, axis=y.type.rank - 1, start=start, stop=start + n)
        start += n
