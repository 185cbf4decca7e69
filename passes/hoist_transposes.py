"""Move transposes up, to where they meet the inverse transpose and both go."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from . import findings
from .manager import Pass
from .rewrite import replace_nodes, rewrite
from .view_rules import VIEW_RULES

_PASSED = frozenset(("slice", "concat", "pad", "rope", "rms_norm", "layer_norm"))
MAX_DEPTH = 12  # ops between a transpose and the one it is to meet


@dataclass(frozen=True)
class HoistTransposes(Pass):
    """Captured attention works on [1, H, T, D], linear layers and pages on [T, H, D].

    transpose(f(transpose(x)))  ->  f(x), for f that works element by element or along an axis: what
    lies between is then read and written in the order in which it is stored.
    """

    name = "hoist-transposes"

    def run(self, graph: Graph) -> Graph:
        for _ in range(MAX_DEPTH):
            moved = replace_nodes(graph, _Hoist(graph), frozenset(("transpose",)))
            after = rewrite(moved, VIEW_RULES)
            if after is graph:
                return graph
            graph = after
        return graph


class _Hoist:
    def __init__(self, graph: Graph):
        self.graph = graph

    def __call__(self, b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        inner = node.operands[0].node
        if inner is None or not self.can_pass(inner):
            return None
        perm = node.attrs["perm"]
        mapped = operands[0].node
        assert mapped is not None
        result = _moved(b, mapped, perm)
        if result is None or not any(_leads_to_transpose(v) for v in inner.operands):
            return None
        findings.current().fire(f"above {inner.op.name}")
        return [result]

    def can_pass(self, inner: Node) -> bool:
        """Whether only the transpose reads the op: otherwise it would be computed twice."""
        result = inner.results[0]
        uses = self.graph.uses.get(result, ())
        return result not in self.graph.results and (len(uses) == 1 or inner.op.kind == "view")


def _leads_to_transpose(value: Value, depth: int = MAX_DEPTH) -> bool:
    node = value.node
    if node is None or depth == 0:
        return False
    if node.op.name == "transpose":
        return True
    if node.op.kind == "elementwise" or node.op.name in _PASSED:
        return any(_leads_to_transpose(v, depth - 1) for v in node.operands)
    return False


def _moved(b: Builder, node: Node, perm: tuple[int, ...]) -> Value | None:
    """transpose(op(x, ...)) as op(transpose(x), ...); None when the op does not allow it."""
    rank = len(perm)
    match node.op.name:
        case "slice" | "concat" | "pad":
            axis = normalize_axis(node.attrs["axis"], rank)
            moved = [b.transpose(v, perm=perm) for v in node.operands]
            return b.node(node.op, moved, {**node.attrs, "axis": perm.index(axis)}).result
        case "rope":
            if perm[-1] != rank - 1:
                return None
            return b.node(node.op, [_turned(b, v, perm) for v in node.operands], {}).result
        case "rms_norm" | "layer_norm":
            if perm[-1] != rank - 1:
                return None
            x, *weights = node.operands
            return b.node(node.op, [b.transpose(x, perm=perm), *weights], node.attrs).result
    if node.op.kind != "elementwise":
        return None
    return b.node(node.op, [_turned(b, v, perm) for v in node.operands], node.attrs).result


def _turned(b: Builder, value: Value, perm: tuple[int, ...]) -> Value:
    """The operand of a broadcasting op, transposed; scalars as they are."""
    if value.type.rank == 0:
        return value
    missing = len(perm) - value.type.rank
    if missing:
        value = b.reshape(value, shape=(1,) * missing + value.shape)
    return b.transpose(value, perm=perm)
