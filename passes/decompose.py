"""Take composites apart where no kernel takes the whole."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.errors import PassError
from ..ir.graph import Graph, Node, Value
from ..ir.op import OPS
from . import findings
from .manager import Pass
from .rewrite import replace_nodes

# what kernels are generated for whole; they expand these themselves
KEPT = ("rms_norm", "layer_norm", "softmax", "paged_attention", "gated_linear")


@dataclass(frozen=True)
class Decompose(Pass):
    """Code is generated for few ops; the rest must be written in those."""

    name = "decompose"
    keep: tuple[str, ...] = KEPT

    def run(self, graph: Graph) -> Graph:
        unknown = [name for name in self.keep if name not in OPS]
        if unknown:
            raise PassError(f"decompose: keep names no such op: {', '.join(unknown)}")
        # a decomposition may use composites that are to be taken apart in turn
        for _ in range(len(OPS)):
            after = replace_nodes(graph, self.replace)
            if after is graph:
                return graph
            graph = after
        raise PassError("decompose: decompositions go round in a circle")

    def replace(self, b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        if node.op.decomposition is None or node.op.name in self.keep:
            return None
        findings.current().fire(node.op.name)
        result = node.op.decomposition(b, *operands, **node.attrs)
        return result if isinstance(result, tuple) else [result]
