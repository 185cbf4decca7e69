"""Recognise act(x @ w_gate^T) * (x @ w_up^T)."""

from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.graph import Graph, Node, Value
from ..ir.ops.contract import ACTIVATIONS
from .manager import Pass
from .patterns import Any_, OneOf, Pattern, pat
from .rewrite import Decline, rewrite, rule
from .view_rules import axis_of

x, w_gate, w_up, w = Any_("x"), Any_("w_gate"), Any_("w_up"), Any_("w")


def _activated(inner: Pattern) -> OneOf:
    return OneOf(*(getattr(pat, name)(inner, bind="act") for name in ACTIVATIONS))


_gate, _up = pat.matmul(x, w_gate, transpose_w=True), pat.matmul(x, w_up, transpose_w=True)


@rule(pat.mul(_activated(_gate), _up))
def two_projections(b: Builder, x: Value, w_gate: Value, w_up: Value, act: Node):
    """act(matmul(x, w_gate)) * matmul(x, w_up)  ->  gated_linear(x, w_gate, w_up)"""
    if w_gate.type != w_up.type or w_gate.type.rank != 2:
        return Decline(f"weights are {w_gate.type} and {w_up.type}, not of one type [F, K]")
    return b.gated_linear(x, w_gate, w_up, activation=act.op.name)


def _halves(product: Pattern) -> Pattern:
    return pat.mul(_activated(pat.slice(product, bind="gate")), pat.slice(product, bind="up"))


_both = pat.matmul(x, w, transpose_w=True)
_grouped = pat.grouped_matmul(x, w, Any_("index"), transpose_w=True)


@rule(_halves(_both))
def one_projection(b: Builder, x: Value, w: Value, act: Node, gate: Node, up: Node):
    """act(y[:F]) * y[F:] of y = matmul(x, w)  ->  gated_linear(x, w[:F], w[F:])"""
    if w.type.rank != 2:
        return Decline(f"the weight is {w.type}, not [F, K]")
    if (declined := _no_halves(gate, up)) is not None:
        return declined
    return b.gated_linear(x, *_parts(b, w, gate, up), activation=act.op.name)


@rule(_halves(_grouped))
def experts(b: Builder, x: Value, w: Value, index: Value, act: Node, gate: Node, up: Node):
    """The same of y = grouped_matmul(x, w, index)  ->  grouped_gated_linear(x, .., index)"""
    if (declined := _no_halves(gate, up)) is not None:
        return declined
    return b.grouped_gated_linear(x, *_parts(b, w, gate, up), index, activation=act.op.name)


def _no_halves(gate: Node, up: Node) -> Decline | None:
    """Why the slices of a product are not those of its weight's rows, one beside the other."""
    last = up.operands[0].type.rank - 1
    if {axis_of(gate), axis_of(up)} != {last}:
        return Decline("gate and up are not slices of the last axis of a linear layer")
    if gate.results[0].shape != up.results[0].shape:
        return Decline("gate and up are of different sizes")
    return None


def _parts(b: Builder, w: Value, *slices: Node) -> list[Value]:
    names = ("start", "stop", "step")
    axis = w.type.rank - 2
    return [b.slice(w, axis=axis, **{name: n.attrs[name] for name in names}) for n in slices]


_biased_gate = pat.add(pat.matmul(x, w_gate), Any_("gate_bias"))


@rule(pat.mul(_activated(_biased_gate), pat.add(pat.matmul(x, w_up), Any_("bias"))))
def with_biases(b: Builder, **_: object):
    """act(x @ w_gate + c) * (x @ w_up + d): gated_linear has no biases"""
    return Decline("the projections have biases")


@dataclass(frozen=True)
class FuseGatedMlp(Pass):
    """x is read once for both products, and neither product is written out."""

    name = "fuse-gated-mlp"

    def run(self, graph: Graph) -> Graph:
        return rewrite(graph, [two_projections, one_projection, experts, with_biases])
