"""Sampling: one row of scores to one token, a template of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim
from ...ir.graph import Node, Value
from ...ir.target import Target
from ..groups import Groups
from ..inline import Inliner
from ..loops import LoopKernel, Sample
from .template import WARPS, Bucket, Schedule, Template, powers_of_2


@dataclass(frozen=True)
class SampleSchedule(Schedule):
    """Tokens of the vocabulary a program draws from, and a step of the search for a cut."""

    domain: ClassVar = {
        "piece": powers_of_2(32, 16384),
        "block": powers_of_2(32, 32768),
        "num_warps": WARPS,
    }

    piece: int = 2048
    block: int = 8192
    num_warps: int = 16


@dataclass(frozen=True)
class SampleSplit(Schedule):
    """The launch that draws from pieces."""

    piece: int
    pieces: int
    num_warps: int = 4


@dataclass(frozen=True)
class SampleJoin(Schedule):
    """The launch that joins the pieces, or searches for the cut."""

    pieces: int
    block: int
    num_warps: int


class SampleTemplate(Template):
    """One node, which reads its operands as they lie."""

    name = "sample"
    kinds = frozenset(("sample",))
    parts = (Sample,)

    def stored_operand(self, groups: Groups, node: Node, number: int) -> Value | None:
        return node.operands[number]

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Sample]:
        (node,) = nodes
        rows, vocab = node.operands[0].shape
        numbers = [inliner.param(v) for v in node.operands]
        return (Sample(*numbers, inliner.param(outputs[0], is_written=True), rows, vocab),)

    def points(self, part: Sample) -> Dim:
        return part.rows * part.vocab

    def operations(self, part: Sample) -> Dim:
        """How many draws a row takes depends on its scores: not counted."""
        return 0

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        return 0, [(0, None, SampleSchedule())]
