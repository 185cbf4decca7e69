"""Move transposes up, to where they meet the inverse transpose and both go."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.axes import Axes
from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from . import findings
from .manager import Pass
from .rewrite import replace_nodes, rewrite
from .view_rules import VIEW_RULES

_ANY_ORDER = frozenset(("elementwise", "view", "composite", "scan"))
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
            moved = replace_nodes(graph, _Hoist(graph), ("transpose",))
            after = rewrite(moved, VIEW_RULES)
            if after is graph:
                return graph
            graph = after
        return graph


class _Hoist:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.axes = Axes(graph.facts)

    def __call__(self, b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        inner = node.operands[0].node
        if inner is None or not self.can_pass(inner):
            return None
        perm = node.attrs["perm"]
        mapped = operands[0].node
        assert mapped is not None
        result = _moved(b, mapped, perm, self.axes)
        if result is None or not any(_leads_to_transpose(v, self.axes) for v in inner.operands):
            return None
        findings.current().fire(f"above {inner.op.name}")
        return [result]

    def can_pass(self, inner: Node) -> bool:
        """Whether only the transpose reads the op: otherwise it would be computed twice."""
        result = inner.results[0]
        uses = self.graph.uses.get(result, ())
        return result not in self.graph.results and (len(uses) == 1 or inner.op.kind == "view")


def _leads_to_transpose(value: Value, axes: Axes, depth: int = MAX_DEPTH) -> bool:
    node = value.node
    if node is None or depth == 0:
        return False
    if node.op.name == "transpose":
        return True
    if mixed_axes(node, axes) is None:
        return False
    return any(_leads_to_transpose(v, axes, depth - 1) for v in node.operands)


def _moved(b: Builder, node: Node, perm: tuple[int, ...], axes: Axes) -> Value | None:
    """transpose(op(x, ...)) as op(transpose(x), ...); None when the op does not allow it."""
    mixed = mixed_axes(node, axes)
    if mixed is None:
        return None
    attrs = dict(node.attrs)
    if "axis" in attrs:
        attrs["axis"] = perm.index(normalize_axis(attrs["axis"], len(perm)))
    elif any(perm[axis] != axis for axis in mixed):
        return None
    return b.node(node.op, [_turned(b, v, perm) for v in node.operands], attrs).result


def mixed_axes(node: Node, axes: Axes) -> frozenset[int] | None:
    """Axes along which the op mixes, where it treats the other ones alike, whatever their order.

    None for an op that does not: its operands lie otherwise than broadcasting lays them, or its
    attributes list axes.
    """
    if node.op.kind not in _ANY_ORDER or any(isinstance(a, tuple) for a in node.attrs.values()):
        return None
    rank = node.results[0].type.rank
    mixed = set()
    for operand in axes.of(node):
        for axis, along in enumerate(operand, rank - len(operand)):
            if isinstance(along, str):
                mixed.add(axis)
            elif along not in (axis, None):
                return None
    return frozenset(mixed)


def _turned(b: Builder, value: Value, perm: tuple[int, ...]) -> Value:
    """The operand of a broadcasting op, transposed; as it is where its axes keep their places."""
    missing = len(perm) - value.type.rank
    if all(perm[axis] == axis for axis in range(missing, len(perm))):
        return value
    if missing:
        value = b.reshape(value, shape=(1,) * missing + value.shape)
    return b.transpose(value, perm=perm)
