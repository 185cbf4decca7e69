"""Scores to which each key adds a number of its own: the number becomes an element of the key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..ir.builder import Rebuilder
from ..ir.dim import floordiv, symbols_of
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import Index, Read
from ..ir.indexing import broadcast_index
from . import findings
from .manager import Pass
from .masks import I, J, MaskReader, is_large_negative
from .positions import H, read_scores
from .rewrite import replace_nodes
from .token_axis import ATTENTION


@dataclass(frozen=True)
class CarryKeyBiases(Pass):
    """attention(q, k, v, mask + bias of k)  ->  attention([q, 1 / scale], [k, bias], v, mask)

    Over pages a score is computed of what its key brings along. Only where the mask cannot be read
    otherwise.
    """

    name = "carry-key-biases"

    def run(self, graph: Graph) -> Graph:
        if not any(node.op is ATTENTION and len(node.operands) > 3 for node in graph.nodes):
            return graph
        return replace_nodes(graph, partial(_carried, graph), ("attention",))


def _carried(
    graph: Graph, b: Rebuilder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    q, k, v, *others = operands
    if not others or node.attrs["softcap"] is not None:
        return None
    if not isinstance(read_scores(graph, node), str):
        return None
    mask = node.operands[3]
    at = broadcast_index((*(0,) * (mask.type.rank - 3), H, I, J), mask.type)
    found = _Finder(graph, node).bias(mask, at)
    if found is None:
        return None
    bias, head, key = found.value, found.head, found.key
    perm = [i for i in range(bias.type.rank) if i not in (head, key)]
    perm += [i for i in (head, key) if i is not None]
    x = b.transpose(b[bias], perm=tuple(perm))
    heads = 1 if head is None else bias.shape[head]
    x = b.reshape(x, shape=(*(1,) * (k.type.rank - 3), heads, bias.shape[key], 1))
    x = b.broadcast_to(b.cast(x, dtype=k.dtype), shape=(*k.shape[:-1], 1))
    one = b.full(value=1 / node.attrs["scale"], shape=(*q.shape[:-1], 1), dtype=q.dtype)
    zero = b.full(value=0.0, shape=bias.shape, dtype=bias.dtype)
    without = _replaced(b, mask, found.path, zero)
    findings.current().fire("key_bias")
    carrying = [b.concat(q, one, axis=-1), b.concat(k, x, axis=-1)]
    return b.node(node.op, [*carrying, v, without, *others[1:]], node.attrs).results


@dataclass(frozen=True)
class _Bias:
    """A value with its axis of heads, where it has one, and that of keys.

    `path`: by which operands of the nodes from the mask on it is reached.
    """

    value: Value
    head: int | None
    key: int
    path: tuple[int, ...] = ()


class _Finder(MaskReader):
    """Looks for what a mask adds that differs from key to key and from head to head alone."""

    def __init__(self, graph: Graph, node: Node):
        q, k = node.operands[:2]
        super().__init__(graph, q.shape[-2], k.shape[-2])
        self.facts.declare("_h", q.shape[-3])
        self.heads, self.groups = q.shape[-3], k.shape[-3]

    def bias(self, value: Value, index: Index) -> _Bias | None:
        """What is added at this place of a mask to scores of keys that are seen."""
        if not any("_i" in symbols_of(at) for at in index):
            return self.axes(value, index)
        node = value.node
        if node is None:
            return None
        mapped = self.mapped(node, index)
        if isinstance(mapped, Read):
            return self.below(node, mapped.operand, mapped.index)
        # of a choice the other side hides the key
        hides = [is_large_negative(v) for v in node.operands[1:]]
        if node.op.name == "add":
            terms: tuple[int, ...] = (0, 1)
        elif node.op.name == "where" and True in hides:
            terms = (1 + hides.index(False),) if False in hides else ()
        else:
            return None
        shapes = {i: broadcast_index(index, node.operands[i].type) for i in terms}
        found = (self.below(node, i, at) for i, at in shapes.items())
        return next((bias for bias in found if bias is not None), None)

    def below(self, node: Node, operand: int, index: Index) -> _Bias | None:
        found = self.bias(node.operands[operand], index)
        return None if found is None else replace(found, path=(operand, *found.path))

    def axes(self, value: Value, index: Index) -> _Bias | None:
        if not value.dtype.is_float or J not in index:
            return None
        head, group = None, floordiv(H, floordiv(self.heads, self.groups))
        for axis, at in enumerate(index):
            if at == group and value.shape[axis] == self.groups:
                head = axis
            elif at != J and value.shape[axis] != 1:
                return None
        return _Bias(value, head, index.index(J))


def _replaced(b: Rebuilder, value: Value, path: tuple[int, ...], new: Value) -> Value:
    """`value` with another in place of what lies at the end of the path."""
    if not path:
        return new
    node = value.node
    assert node is not None, "the path goes through nodes"
    operands = [b[v] for v in node.operands]
    operands[path[0]] = _replaced(b, node.operands[path[0]], path[1:], new)
    return b.node(node.op, operands, node.attrs).results[node.results.index(value)]
