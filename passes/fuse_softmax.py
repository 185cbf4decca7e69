"""Recognise softmax written out in primitive ops."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from .manager import Pass
from .patterns import Any_, pat
from .rewrite import Decline, rewrite, rule

x = Any_("x")
_e = pat.exp(pat.sub(x, pat.max(x, keepdims=True, bind="max")))
_unshifted = pat.exp(x)


@rule(pat.div(_e, pat.sum(_e, keepdims=True, bind="sum")))
def written_out(b: Builder, x: Value, max: Node, sum: Node):
    """exp(x - max(x)) / sum(exp(x - max(x)))  ->  softmax(x)"""
    axes = {tuple(normalize_axis(a, x.type.rank) for a in n.attrs["axes"]) for n in (max, sum)}
    if len(axes) != 1 or len(first := axes.pop()) != 1:
        return Decline("maximum and sum are not over one and the same axis")
    return b.softmax(x, axis=first[0])


@rule(pat.div(_unshifted, pat.sum(_unshifted, keepdims=True, bind="sum")))
def without_maximum(b: Builder, x: Value, sum: Node):
    """exp(x) / sum(exp(x))  ->  softmax(x), which does not overflow"""
    axes = [normalize_axis(a, x.type.rank) for a in sum.attrs["axes"]]
    if len(axes) != 1:
        return Decline("the sum is over several axes")
    return b.softmax(x, axis=axes[0])


@rule(pat.cast(pat.softmax(pat.cast(x), bind="softmax"), bind="root"))
def in_float32(b: Builder, x: Value, softmax: Node, root: Node):
    """cast(softmax(cast(x))) back to x's dtype  ->  softmax(x), which computes in float32"""
    if x.dtype != root.results[0].dtype or x.dtype.bits >= softmax.results[0].dtype.bits:
        return None
    return b.softmax(x, axis=softmax.attrs["axis"])


@dataclass(frozen=True)
class FuseSoftmax(Pass):
    """One kernel in place of several; attention needs it recognized."""

    name = "fuse-softmax"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [written_out, without_maximum, in_float32])
