"""Scores to which each key adds a number of its own: the number becomes an element of the key."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..ir.builder import Rebuilder
from ..ir.dim import symbols_of
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import Index
from ..ir.indexing import broadcast_index
from . import findings
from .manager import Pass
from .masks import I, J, MaskReader, is_large_negative
from .positions import H, read_scores
from .rewrite import replace_nodes


@dataclass(frozen=True)
class CarryKeyBiases(Pass):
    """attention(q, k, v, mask + bias of k)  ->  attention([q, 1 / scale], [k, bias], v, mask)

    Over pages a score is computed of what its key brings along. Only where the mask cannot be read
    otherwise.
    """

    name = "carry-key-biases"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, partial(_carried, graph), ("attention",))


def _carried(
    graph: Graph, b: Rebuilder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    q, k, v, *others = operands
    if not others or node.attrs["softcap"] is not None:
        return None
    if not isinstance(read_scores(graph, node), str):
        return None
    finder = _Finder(graph, node)
    mask = node.operands[3]
    found = finder.bias(mask, broadcast_index((*(0,) * (mask.type.rank - 3), H, I, J), mask.type))
    if found is None:
        return None
    bias, (head, key) = found
    perm = [i for i in range(bias.type.rank) if i not in (head, key)]
    perm += [i for i in (head, key) if i is not None]
    x = b.transpose(b[bias], perm=tuple(perm))
    heads = 1 if head is None else bias.shape[head]
    x = b.reshape(x, shape=(*(1,) * (k.type.rank - 3), heads, bias.shape[key], 1))
    x = b.broadcast_to(b.cast(x, dtype=k.dtype), shape=(*k.shape[:-1], 1))
    one = b.full(value=1 / node.attrs["scale"], shape=(*q.shape[:-1], 1), dtype=q.dtype)
    without = _replaced(b, mask, bias, b.full(value=0.0, shape=bias.shape, dtype=bias.dtype))
    findings.current().fire("key_bias")
    carrying = [b.concat(q, one, axis=-1), b.concat(k, x, axis=-1)]
    return b.node(node.op, [*carrying, v, without, *others[1:]], node.attrs).results


class _Finder(MaskReader):
    """Looks for what a mask adds that differs from key to key and from head to head alone."""

    def __init__(self, graph: Graph, node: Node):
        q, k = node.operands[:2]
        super().__init__(graph, q.shape[-2], k.shape[-2])
        self.facts.declare("_h", q.shape[-3])
        self.heads, self.groups = q.shape[-3], k.shape[-3]

    def bias(self, value: Value, index: Index) -> tuple[Value, tuple[int | None, int]] | None:
        """The bias, its axis of heads where it has one, and that of keys."""
        if "_i" not in {name for at in index for name in symbols_of(at)}:
            return self.axes(value, index)
        node = value.node
        if node is None:
            return None
        inner = self.through(node, index)
        if inner is not None:
            return self.bias(*inner)
        terms = node.operands if node.op.name == "add" else ()
        if node.op.name == "where":
            terms = [v for v in node.operands[1:] if not is_large_negative(v)]
        for term in terms:
            if (found := self.bias(term, broadcast_index(index, term.type))) is not None:
                return found
        return None

    def axes(self, value: Value, index: Index) -> tuple[Value, tuple[int | None, int]] | None:
        if not value.dtype.is_float or J not in index:
            return None
        head = None
        for axis, at in enumerate(index):
            if at == H // (self.heads // self.groups) and value.shape[axis] == self.groups:
                head = axis
            elif at != J and value.shape[axis] != 1:
                return None
        return value, (head, index.index(J))


def _replaced(b: Rebuilder, value: Value, old: Value, new: Value) -> Value:
    """`value` as it would be with another value in place of `old`."""
    if value is old:
        return new
    if value.node is None:
        return b[value]
    operands = [_replaced(b, v, old, new) for v in value.node.operands]
    if all(x is b[v] for x, v in zip(operands, value.node.operands)):
        return b[value]
    results = b.node(value.node.op, operands, value.node.attrs).results
    return results[value.node.results.index(value)]
