"""Scale the weights of a convolution in place of its result."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.types import f32, f64
from ..ir.weight_only import is_static, is_weight_only, weight_only
from . import findings
from .manager import Pass
from .rewrite import replace_nodes


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """A batch normalization by stored statistics is x * scale + shift: the scale costs nothing.

    In float32 and float64 only: the weights are rounded once more, which a narrower dtype shows.
    """

    name = "fold-batch-norm"

    def run(self, graph: Graph) -> Graph:
        while (after := replace_nodes(graph, _Fold(graph), ("mul", "add"))) is not graph:
            graph = after
        return graph


class _Fold:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.known = weight_only(graph)

    def __call__(self, b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        for made, by in ((0, 1), (1, 0)):
            if self.is_known(node.operands[by]) and self.is_made_here(node.operands[made]):
                known = self.is_known_at(node.operands[made].node, operands[made].node)
                fold = _scaled if node.op.name == "mul" else _shifted
                result = fold(b, operands[made], operands[by], known)
                if result is not None:
                    findings.current().fire(node.op.name)
                    return [result]
        return None

    def is_known(self, value: Value) -> bool:
        """Whether a value depends on weights and constants alone."""
        maker = value.node
        is_source = maker is not None and maker.op.kind == "source" and is_static(maker)
        return is_source or is_weight_only(self.graph, value, self.known)

    def is_made_here(self, value: Value) -> bool:
        """Whether only the node reads a value, so that nobody misses it."""
        is_read_once = len(self.graph.uses.get(value, ())) == 1
        return is_read_once and value not in self.graph.results

    def is_known_at(self, maker: Node | None, made: Node | None) -> tuple[bool, ...]:
        """Which operands of what makes an operand are known; none where it was just replaced."""
        if maker is None or made is None or maker.op is not made.op:
            return ()
        return tuple(self.is_known(v) for v in maker.operands)


def _scaled(b: Builder, made: Value, scale: Value, known: tuple[bool, ...]) -> Value | None:
    """conv(x, w) * s  ->  conv(x, w * s);  (y + c) * s  ->  y * s + c * s"""
    node, by_output = made.node, _by_output(b, scale, made)
    if node is None or by_output is None or sum(known) != 1 or made.dtype not in (f32, f64):
        return None
    if node.op.name == "conv" and known[1]:
        x, w = node.operands
        return b.conv(x, b.mul(w, by_output), **node.attrs)
    if node.op.name == "add":
        y, c = node.operands if known[1] else node.operands[::-1]
        if y.node is not None and y.node.op.name == "conv":
            return b.add(b.mul(y, scale), b.mul(c, scale))
    return None


def _shifted(b: Builder, made: Value, shift: Value, known: tuple[bool, ...]) -> Value | None:
    """(conv(x, w) + c) + d  ->  conv(x, w) + (c + d)"""
    node = made.node
    if node is None or node.op.name != "add" or made.dtype not in (f32, f64) or sum(known) != 1:
        return None
    y, c = node.operands if known[1] else node.operands[::-1]
    is_wide = len(c.shape) == len(shift.shape) or shift.type.rank == 0
    if y.node is None or y.node.op.name != "conv" or not is_wide:
        return None
    return b.add(y, b.add(c, shift))


def _by_output(b: Builder, scale: Value, made: Value) -> Value | None:
    """A factor of a convolution's result as one of its weights; None where it is no such factor."""
    rank = made.type.rank
    shape = (1,) * (rank - scale.type.rank) + scale.shape
    if rank < 2 or any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return b.reshape(scale, shape=(shape[1], *[1] * (rank - 1)))
