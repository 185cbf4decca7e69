"""Recognise rotary position embedding in the half-split order."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.errors import ShapeError
from ..ir.graph import Graph, Node, Value
from .manager import Pass
from .patterns import Any_, pat
from .rewrite import Decline, rewrite, rule
from .view_rules import axis_of

x, source, cos, sin = Any_("x"), Any_("source"), Any_("cos"), Any_("sin")
_high, _low = pat.slice(source, bind="high"), pat.slice(source, bind="low")


@rule(
    pat.add(pat.mul(x, cos), pat.mul(pat.concat(pat.neg(_high), _low, bind="halves"), sin)),
    pat.sub(pat.mul(x, cos), pat.mul(pat.concat(_high, pat.neg(_low), bind="halves"), sin)),
    may_share=True,  # slices of x are views
)
def rotate_half(
    b: Builder, x: Value, source: Value, cos: Value, sin: Value, high: Node, low: Node, halves: Node
):
    """x * cos + concat(-x[D/2:], x[:D/2]) * sin  ->  rope(x, cos, sin)"""
    last, size = x.type.rank - 1, x.shape[-1]
    if axis_of(halves) != last or {axis_of(high), axis_of(low)} != {last}:
        return Decline("the halves are not of the last axis")
    if high.attrs["step"] != 1 or low.attrs["step"] != 1:
        return Decline("interleaved order: rope is the half-split one")
    start = _start_in(x, source)
    if start is None or not isinstance(size, int) or size % 2:
        return Decline("the rotated halves are not those of x")
    ranges = [(n.attrs["start"] - start, n.attrs["stop"] - start) for n in (low, high)]
    if ranges != [(0, size // 2), (size // 2, size)]:
        return Decline("the rotated halves are not those of x")
    try:
        return b.rope(x, cos, sin)
    except ShapeError as error:
        return Decline(error.facts)


def _start_in(x: Value, source: Value) -> int | None:
    """Where along the last axis x begins in source: x is source, or a slice of it."""
    if x is source:
        return 0
    node = x.node
    if node is None or node.op.name != "slice" or node.operands[0] is not source:
        return None
    return node.attrs["start"] if axis_of(node) == x.type.rank - 1 else None


@rule(pat.rope(x, pat.broadcast_to(cos, bind="wide"), pat.broadcast_to(sin)), may_share=True)
def narrow_tables(b: Builder, x: Value, cos: Value, sin: Value, wide: Node):
    """rope(x, broadcast_to(cos), broadcast_to(sin))  ->  rope(x, cos, sin)"""
    try:
        return b.rope(x, cos, sin)
    except ShapeError as error:
        return Decline(error.facts)


@dataclass(frozen=True)
class FuseRope(Pass):
    """Makes later passes see one op a head tensor; on its own it saves the intermediate halves."""

    name = "fuse-rope"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [rotate_half, narrow_tables])
