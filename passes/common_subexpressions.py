"""Compute what is written twice once."""

from dataclasses import dataclass
from typing import Any

from ..ir.builder import Rebuilder
from ..ir.graph import Graph, Node
from . import findings
from .manager import Pass
from .rewrite import remove_dead


@dataclass(frozen=True)
class CommonSubexpressions(Pass):
    """Captured models repeat masks, position tables and constants in every layer."""

    name = "common-subexpressions"

    def run(self, graph: Graph) -> Graph:
        b = Rebuilder(graph)
        seen: dict[Any, Node] = {}
        merged = 0
        for node in graph.nodes:
            # ops are pure, states included: a state is consumed once, so no two nodes share one
            key = (node.op, tuple(b[v] for v in node.operands), _attrs_key(node))
            first = seen.get(key)
            if first is None:
                seen[key] = b.copy(node)
                continue
            merged += 1
            for old, new in zip(node.results, first.results):
                b[old] = new
        if not merged:
            return graph
        findings.current().fired["merged"] += merged
        return remove_dead(b.finish())


def _attrs_key(node: Node) -> tuple[Any, ...]:
    # 1, 1.0 and True are equal, as are 0.0 and -0.0: the type and the text tell them apart
    return tuple(
        (name, type(v).__name__, repr(v) if isinstance(v, float) else v)
        for name, v in node.attrs.items()
    )
