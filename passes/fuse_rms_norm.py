"""Recognise root-mean-square normalisation written out in primitive ops."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from .manager import Pass
from .patterns import Any_, Numeral, constant_of, maybe_cast, pat
from .rewrite import Decline, rewrite, rule

x, weight = Any_("x"), Any_("weight")
_mean = pat.mean(pat.mul(x, x), keepdims=True, bind="mean")
_shifted = pat.add(_mean, Numeral("eps"))


@rule(pat.mul(x, pat.rsqrt(_shifted)), pat.div(x, pat.sqrt(_shifted)))
def written_out(b: Builder, x: Value, mean: Node, eps: float):
    """x * rsqrt(mean(x * x) + eps)  ->  rms_norm(x, ones)"""
    if not reduces_last_axis(mean):
        return Decline("the mean is not over the last axis")
    if not isinstance(x.shape[-1], int):
        return Decline("the size of the last axis is not known")
    ones = b.full(value=1.0, shape=x.shape[-1:], dtype=x.dtype)
    return b.rms_norm(x, ones, eps=eps)


@rule(pat.mul(maybe_cast(pat.rms_norm(x, Any_("ones"), bind="norm")), weight, bind="root"))
def weighted(b: Builder, x: Value, ones: Value, weight: Value, norm: Node, root: Node):
    """rms_norm(x, ones) * weight  ->  rms_norm(x, weight)"""
    if constant_of(ones) != 1:
        return None  # it has its weight
    if weight.shape != x.shape[-1:]:
        return Decline(f"the factor is {weight.type}, not a weight of the last axis")
    if weight.dtype == x.dtype:
        return b.rms_norm(x, weight, eps=norm.attrs["eps"])
    narrow = x.node.operands[0] if x.node is not None and x.node.op.name == "cast" else x
    if narrow.dtype == weight.dtype:
        # both sides of the cast are computed in float32 and rounded once
        return b.rms_norm(narrow, weight, eps=norm.attrs["eps"])
    return Decline(f"x is {narrow.dtype}, the weight {weight.dtype}")


@rule(pat.cast(pat.rms_norm(pat.cast(x), maybe_cast(weight), bind="norm"), bind="root"))
def in_float32(b: Builder, x: Value, weight: Value, norm: Node, root: Node):
    """cast(rms_norm(cast(x), cast(weight)))  ->  rms_norm(x, weight)"""
    dtype = root.results[0].dtype
    if not dtype.is_float:
        return None  # flags and whole numbers are not normalized as such
    if not x.dtype == dtype == weight.dtype:
        if constant_of(weight) != 1 or x.dtype != dtype:
            return None  # the norm stays in float32, between casts
        weight = b.full(value=1.0, shape=weight.shape, dtype=dtype)
    return b.rms_norm(x, weight, eps=norm.attrs["eps"])


def reduces_last_axis(node: Node) -> bool:
    """Whether a reduction is over exactly the last axis."""
    rank = node.operands[0].type.rank
    return [normalize_axis(a, rank) for a in node.attrs["axes"]] == [rank - 1]


@dataclass(frozen=True)
class FuseRmsNorm(Pass):
    """One kernel, or a prologue, in place of six; x is read once instead of three times."""

    name = "fuse-rms-norm"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [written_out, weighted, in_float32])
