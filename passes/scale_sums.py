"""Scale the sums of a product in place of the codes that its weight is stored in."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.types import f32
from . import findings
from .manager import Pass
from .rewrite import replace_nodes


@dataclass(frozen=True)
class ScaleSums(Pass):
    """matmul(x, codes * s)  ->  matmul(x, codes) * s, of a scale for each column of the result

    A kernel then multiplies with the codes as they lie, and once for each sum. In float32 only: in
    a narrower dtype sums that are not scaled may be too large.
    """

    name = "scale-sums"

    def run(self, graph: Graph) -> Graph:
        return replace_nodes(graph, _scaled, ("matmul",))


def _scaled(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    x, w = operands
    is_turned = node.attrs["transpose_w"]
    found = _parts(b, w) if w.dtype == f32 and w.type.rank == 2 else None
    if found is None:
        return None
    codes, scale = found
    columns = w.shape[0 if is_turned else 1]
    along = (columns, 1) if is_turned else (1, columns)
    shape = (1,) * (2 - scale.type.rank) + scale.shape
    if shape not in (along, (1, 1)):
        return None
    findings.current().fire("scaled")
    sums = b.matmul(x, codes, transpose_w=is_turned)
    return [b.mul(sums, b.reshape(scale, shape=() if shape == (1, 1) else (columns,)))]


def _parts(b: Builder, w: Value) -> tuple[Value, Value] | None:
    """(codes as floats, scale) of a weight that is stored as integers without a zero point."""
    node = w.node
    if node is None:
        return None
    if node.op.name == "transpose" and (inner := _parts(b, node.operands[0])) is not None:
        codes, scale = inner
        shape = (1,) * (2 - scale.type.rank) + scale.shape
        return _as_floats(b, _turned(b, codes)), _turned(b, b.reshape(scale, shape=shape))
    if node.op.name == "dequantize" and len(node.operands) == 2:
        codes, scale = node.operands
    elif node.op.name == "mul":
        codes, scale = sorted(map(_uncast, node.operands), key=lambda v: not is_codes(b, v))
    else:
        return None
    return (_as_floats(b, codes), scale) if is_codes(b, codes) else None


def is_codes(b: Builder, value: Value) -> bool:
    """Whether it is integers of whole bytes that are a weight's."""
    if not value.dtype.is_integer or value.dtype.is_packed:
        return False
    while value.node is not None and (value.node.op.is_cast or value.node.op.name == "transpose"):
        (value,) = value.node.operands
    return value in b.weights


def _uncast(value: Value) -> Value:
    """Integers behind a cast to floats."""
    node = value.node
    if node is None or not node.op.is_cast or not node.operands[0].dtype.is_integer:
        return value
    return node.operands[0]


def _as_floats(b: Builder, codes: Value) -> Value:
    return b.cast(_uncast(codes), dtype=f32)


def _turned(b: Builder, value: Value) -> Value:
    value = _uncast(value)
    if value.node is not None and value.node.op.name == "transpose":
        return value.node.operands[0]
    return b.transpose(value, perm=(1, 0))
