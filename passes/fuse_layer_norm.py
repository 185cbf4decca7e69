"""Recognise layer normalisation written out in primitive ops."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from .fuse_rms_norm import reduces_last_axis
from .manager import Pass
from .patterns import Any_, Numeral, constant_of, pat
from .rewrite import Decline, rewrite, rule

x, weight, bias = Any_("x"), Any_("weight"), Any_("bias")
_centered = pat.sub(x, pat.mean(x, keepdims=True, bind="mean"))
_variance = pat.mean(
    pat.mul(pat.sub(x, pat.mean(x, keepdims=True)), pat.sub(x, pat.mean(x, keepdims=True))),
    keepdims=True,
    bind="variance",
)
_shifted = pat.add(_variance, Numeral("eps"))


@rule(pat.mul(_centered, pat.rsqrt(_shifted)), pat.div(_centered, pat.sqrt(_shifted)))
def written_out(b: Builder, x: Value, mean: Node, variance: Node, eps: float):
    """(x - mean(x)) * rsqrt(mean((x - mean(x))^2) + eps)  ->  layer_norm(x, ones, zeros)"""
    if not (reduces_last_axis(mean) and reduces_last_axis(variance)):
        return Decline("mean and variance are not over the last axis")
    if not isinstance(x.shape[-1], int):
        return Decline("the size of the last axis is not known")
    ones, zeros = (b.full(value=v, shape=x.shape[-1:], dtype=x.dtype) for v in (1.0, 0.0))
    return b.layer_norm(x, ones, zeros, eps=eps)


@rule(pat.mul(pat.layer_norm(x, Any_("ones"), Any_("zeros"), bind="norm"), weight))
def weighted(b: Builder, x: Value, ones: Value, zeros: Value, weight: Value, norm: Node):
    """layer_norm(x, ones, zeros) * weight  ->  layer_norm(x, weight, zeros)"""
    if constant_of(ones) != 1 or constant_of(zeros) != 0:
        return None  # it has its weight
    if weight.type != ones.type:
        return Decline(f"the factor is {weight.type}, not a weight of the last axis")
    return b.layer_norm(x, weight, zeros, eps=norm.attrs["eps"])


@rule(pat.add(pat.layer_norm(x, weight, Any_("zeros"), bind="norm"), bias))
def biased(b: Builder, x: Value, weight: Value, zeros: Value, bias: Value, norm: Node):
    """layer_norm(x, weight, zeros) + bias  ->  layer_norm(x, weight, bias)"""
    if constant_of(zeros) != 0:
        return None  # it has its bias
    if bias.type != zeros.type:
        return Decline(f"the addend is {bias.type}, not a bias of the last axis")
    return b.layer_norm(x, weight, bias, eps=norm.attrs["eps"])


@dataclass(frozen=True)
class FuseLayerNorm(Pass):
    """One kernel in place of nine; x is read once instead of four times."""

    name = "fuse-layer-norm"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [written_out, weighted, biased])
