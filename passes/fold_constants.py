"""Compute what depends on constants only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.builder import Builder
from ..ir.errors import DivisionByZero
from ..ir.faults import located
from ..ir.graph import Graph, Node, Value
from ..ir.scalar import evaluate_scalar
from . import findings
from .manager import Pass
from .rewrite import replace_nodes


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Captured code computes scales and masks from numbers; one number is left of each."""

    name = "fold-constants"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _fold)


def _fold(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    """op(full, full)  ->  full, for elementwise ops"""
    if node.op.tree is None or node.op.name == "cast":
        return None  # casts of constants are canonicalize's
    makers = [v.node for v in operands if v.node is not None and v.node.op.name == "full"]
    if len(makers) != len(operands):
        return None
    arrays = [
        # floats in float64, as the reference computes; integers as declared
        np.asarray(m.attrs["value"], np.float64 if v.dtype.is_float else v.dtype.numpy)
        for m, v in zip(makers, operands)
    ]
    with np.errstate(all="ignore"):
        try:
            value = evaluate_scalar(node.op.tree, dict(zip(node.op.operands, arrays)), node.attrs)
        except DivisionByZero as error:
            raise located(error, node.loc) from None
    type = node.results[0].type
    number = np.asarray(value).item()
    if not np.isfinite(element := type.dtype.element(number)):
        number = element  # past the range of its dtype
    findings.current().fire("fold")
    return [b.full(value=number, shape=type.shape, dtype=type.dtype)]
