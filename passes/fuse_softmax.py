"""Recognise softmax written out in primitive ops."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from .manager import Pass
from .patterns import Any_, OneOf, pat
from .rewrite import Decline, rewrite, rule

x = Any_("x")
_shifted = pat.sub(x, pat.max(x, keepdims=True, bind="max"))
_e = pat.exp(OneOf(_shifted, x))


@rule(pat.div(_e, pat.sum(_e, keepdims=True, bind="sum")))
def written_out(b: Builder, x: Value, sum: Node, max: Node | None = None):
    """exp(x - max(x)) / sum(exp(x - max(x)))  ->  softmax(x)

    And without the maximum, where softmax does not overflow.
    """
    nodes = [n for n in (max, sum) if n is not None]
    axes = {tuple(normalize_axis(a, x.type.rank) for a in n.attrs["axes"]) for n in nodes}
    if len(axes) != 1 or len(first := axes.pop()) != 1:
        return Decline("the sum, and the maximum, are not over one and the same axis")
    return b.softmax(x, axis=first[0])


@rule(pat.cast(pat.softmax(pat.cast(x), bind="softmax"), bind="root"))
def in_float32(b: Builder, x: Value, softmax: Node, root: Node):
    """cast(softmax(cast(x))) back to x's dtype  ->  softmax(x), which computes in float32"""
    if x.dtype != root.results[0].dtype or not x.dtype.is_float:
        return None
    if x.dtype.bits >= softmax.results[0].dtype.bits:
        return None
    return b.softmax(x, axis=softmax.attrs["axis"])


@dataclass(frozen=True)
class FuseSoftmax(Pass):
    """One kernel in place of several; attention needs it recognized."""

    name = "fuse-softmax"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [written_out, in_float32])
