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


@dataclass(frozen=True)
class Decompose(Pass):
    """Code is generated for few ops; the rest must be written in those.

    What is declared whole stays, as kernels expand it themselves; `keep` names the ops instead.
    """

    name = "decompose"
    keep: tuple[str, ...] | None = None

    def run(self, graph: Graph) -> Graph:
        unknown = [name for name in self.keep or () if name not in OPS]
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
        if node.op.decomposition is None or self.keeps(node):
            return None
        findings.current().fire(node.op.name)
        result = node.op.decomposition(b, *operands, **node.attrs)
        return result if isinstance(result, tuple) else [result]

    def keeps(self, node: Node) -> bool:
        if self.keep is not None:
            return node.op.name in self.keep
        problem = node.refusal
        if problem:
            findings.current().decline(node.op.name, problem)
        return node.op.is_whole and not problem
