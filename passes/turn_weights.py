"""Store the weights of products by rows of outputs, as linear layers have them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from . import findings
from .manager import Pass
from .rewrite import replace_nodes


@dataclass(frozen=True)
class TurnWeights(Pass):
    """matmul(x, w)  ->  matmul(x, transpose(w)) {transpose_w}, of a weight [K, N]

    The weight is turned once, when a program is built. Kernels then read it in panels, and products
    of one x are merged, as where a model stores it so.
    """

    name = "turn-weights"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _turned, ("matmul",))


def _turned(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    x, w = operands
    if node.attrs["transpose_w"] or w.type.rank != 2 or not is_stored(b, w):
        return None
    findings.current().fire("turned")
    return [b.matmul(x, _transposed(b, w), transpose_w=True)]


def _transposed(b: Builder, w: Value) -> Value:
    """Casts stay last: kernels make them of what is stored narrow."""
    if w.node is None:
        return b.transpose(w, perm=(1, 0))
    return b.cast(_transposed(b, *w.node.operands), dtype=w.dtype)


def is_stored(b: Builder, value: Value) -> bool:
    """Whether it is a weight, or casts of one."""
    while value.node is not None and value.node.op.is_cast:
        (value,) = value.node.operands
    return value in b.weights
