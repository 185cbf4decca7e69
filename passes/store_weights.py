"""Store the weights of products and lookups in a narrower dtype."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ..ir.builder import Builder
from ..ir.errors import PassError
from ..ir.graph import Graph, Node, Value
from ..ir.types import DType, bf16
from ..ir.weight_only import decoding, hoisted, is_weight_only, weight_only
from . import findings
from .manager import Pass
from .rewrite import replace_nodes


@dataclass(frozen=True)
class StoreWeights(Pass):
    """Decoding reads every weight once a token: half the bytes is nearly twice the speed.

    A weight w becomes cast(cast(w, dtype), its own dtype): the inner cast is done at build time,
    the outer one when the weight is loaded. Norm weights and biases are small and stay; so do
    numbers that are decoded from codes wherever they are read, which are stored narrower already.
    """

    name = "store-weights"
    dtype: DType = bf16

    def run(self, graph: Graph) -> Graph:
        if not self.dtype.is_float or self.dtype.bits < 16:
            raise PassError(
                f"store-weights: {self.dtype} is not a dtype that weights can be rounded to",
                fix="use bf16, f16 or f32",
            )
        known, decoded = weight_only(graph), decoding(graph)
        stored: dict[Value, Value] = {}

        def is_wide(v: Value) -> bool:
            wider = v.dtype.is_float and v.dtype.bits > self.dtype.bits
            is_kept = _is_stored(v) or v.node in decoded
            return wider and is_weight_only(graph, v, known) and not is_kept

        def narrowed(b: Builder, value: Value) -> Value:
            if value not in stored:
                stored[value] = b.cast(b.cast(value, dtype=self.dtype), dtype=value.dtype)
                findings.current().fire("stored")
            return stored[value]

        def replace(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
            large = [is_wide(v) for v in _large_operands(node)]
            if not any(large):
                return None
            operands = [narrowed(b, v) if wide else v for v, wide in zip_longest(operands, large)]
            return b.node(node.op, operands, node.attrs).results

        ready = hoisted(graph, known)
        after = replace_nodes(ready, replace)
        return graph if after is ready else after


def _large_operands(node: Node) -> Sequence[Value]:
    """Of a product each, of a lookup what is picked from."""
    if node.op.contraction is not None:
        return node.operands
    return node.operands[:1] if node.op.kind == "gather" else ()


def _is_stored(value: Value) -> bool:
    node = value.node
    return node is not None and node.op.is_cast and node.operands[0].dtype.bits < value.dtype.bits
