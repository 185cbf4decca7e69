"""Recognise products of rows with matrices that an index chooses: a mixture of experts."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.dim import product
from ..ir.graph import Graph, Node, Value
from ..ir.weight_only import is_weight_only, weight_only
from . import findings
from .manager import Pass
from .rewrite import replace_nodes, rewrite
from .view_rules import VIEW_RULES


@dataclass(frozen=True)
class GroupExperts(Pass):
    """matmul(x, gather(w, index))  ->  grouped_matmul(x, w, index)

    The matrices stay where they are; gathered, each row would have a copy of its own. Weights are
    turned, once, so that kernels read their rows in order.
    """

    name = "group-experts"

    def run(self, graph: Graph) -> Graph:
        after = replace_nodes(graph, _grouped, ("matmul",))
        # views around rows and results meet those of the module: what follows them is recognized
        graph = after if after is graph else rewrite(after, VIEW_RULES)
        known = weight_only(graph)

        def turned(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
            x, w, index = operands
            if node.attrs["transpose_w"] or not is_weight_only(graph, node.operands[1], known):
                return None
            w = b.transpose(w, perm=(0, 2, 1))
            return [b.grouped_matmul(x, w, index, transpose_w=True)]

        return replace_nodes(graph, turned, ("grouped_matmul",))


def _grouped(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    """x [*B, M, K] @ w[index [*B]]: a product of the rows of all x, each with its index.

    A column on the other side is a row: gather(w, index) @ x  ->  (x^T @ gather(w, index)^T)^T.
    """
    x, y = operands
    turned = node.attrs["transpose_w"]
    if (chosen := _chosen(y)) is None:
        if (chosen := _chosen(x)) is None or y.shape[-2 if turned else -1] != 1:
            return None
        x, turned = b.reshape(y, shape=(*y.shape[:-2], 1, x.shape[-1])), True
    w, index = chosen
    *batch, m, k = x.shape
    if tuple(batch) != index.shape:
        findings.current().decline("grouped", f"x is {x.type}, its matrices are by {index.type}")
        return None
    if m != 1:
        index = b.broadcast_to(b.reshape(index, shape=(*batch, 1)), shape=(*batch, m))
    rows = product((*batch, m))
    x, index = b.reshape(x, shape=(rows, k)), b.reshape(index, shape=(rows,))
    findings.current().fire("grouped")
    out = b.grouped_matmul(x, w, index, transpose_w=turned)
    return [b.reshape(out, shape=node.results[0].shape)]


def _chosen(value: Value) -> tuple[Value, Value] | None:
    """Matrices and the index that chooses among them, where `value` is what it chooses."""
    node = value.node
    if node is None or node.op.name != "gather" or node.attrs["axis"] != 0:
        return None
    w, index = node.operands
    return (w, index) if w.type.rank == 3 else None
