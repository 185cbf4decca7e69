"""Scans: along one axis of every row, each value combined with all before it. Linear work.

A long row is cut into chunks, always at the same places: each is scanned by itself, and then
combined with what the chunks before it come to. Which chunk is whose never decides a result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.combine import Combine
from ...ir.dim import Dim, ceildiv, product
from ...ir.graph import Node, Value
from ...ir.target import Target
from ...ir.types import DType
from ..cost import scaled
from ..elements import index_facts
from ..forward import stores_after
from ..inline import Inliner
from ..loops import Axis, Element, LoopKernel, Part, Ref, Store, widened
from .template import (
    WARPS,
    Bucket,
    Schedule,
    SurroundedTemplate,
    declare_axes,
    power_of_2,
    powers_of_2,
    settled,
    warps,
)

RESULT = "scan"  # the name under which stores find what the scan has come to
BLOCK, PIECES = 4096, 1024  # elements scanned at once; pieces that a row is cut into
LITTLE = 1 << 22  # elements
LONG_COLUMN = 1024  # elements of an axis across rows that is cut where rows are few
FEW_ROWS = 512  # as many long rows are each cut into pieces: their programs alone fill no GPU


@dataclass(frozen=True)
class Scan(Part):
    """For every row (point of `rows`) and place on `axis`: the stores.

    In them Ref(RESULT) is `value` at this place combined with those of all places before it, in
    `dtype`: f32 for floats (f64 for f64); integers wrap in their own width. A result of n floats
    carries the roundings of at most 64 + n / 64 combinations. `is_across`: the last of the rows is
    inside the axis, so that neighbouring rows lie side by side in memory.
    """

    rows: tuple[Axis, ...]
    axis: Axis
    value: Element
    combine: Combine
    dtype: DType
    stores: tuple[Store, ...]
    is_across: bool


@dataclass(frozen=True)
class ScanSchedule(Schedule):
    """`rows` rows a program; the axis in one tile (`is_persistent`) or in steps of `block`.

    With `piece`, each row is cut into pieces of so many elements, which programs share.
    """

    domain: ClassVar = {
        "rows": powers_of_2(1, 128),
        "block": powers_of_2(1, BLOCK),
        "num_warps": WARPS,
    }

    rows: int
    block: int
    is_persistent: bool
    num_warps: int = 4
    piece: int | None = None


class ScanTemplate(SurroundedTemplate):
    """One scan, with what is computed before and after it element by element."""

    name = "scan"
    kinds = frozenset(("scan",))
    parts = (Scan,)

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Scan]:
        (node,) = [n for n in nodes if n.op.kind == "scan"]
        (x,) = node.operands
        result = node.results[0]
        at = node.attrs["axis"] % x.type.rank
        axes, index = declare_axes(inliner, x.shape)
        value = inliner.element(x, index)
        dtype = widened(x.dtype)
        stores = stores_after(inliner, {result: Ref(RESULT, dtype)}, index, outputs)
        rows = tuple(a for i, a in enumerate(axes) if i != at and a.extent != 1)
        is_across = any(d != 1 for d in x.shape[at + 1 :])
        return (Scan(rows, axes[at], value, node.op.combine, dtype, stores, is_across),)

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        low, high = facts.bounds(part.axis.extent)
        likely, rows = facts.hint(part.axis.extent), product(a.extent for a in part.rows)
        few = scaled(FEW_ROWS, target)
        if part.is_across:
            whole = ScanSchedule(64, 64, False, 8)
            if likely < LONG_COLUMN:
                return 0, [(0, None, whole)]
            split = replace(whole, piece=256 * ceildiv(likely, 256 * 32))
            return settled(rows, [(0, 64 * few, split), (64 * few + 1, None, whole)], facts)
        if low == high and high is not None and high <= BLOCK:
            block = power_of_2(high)
            count = min(max(1024 // block, 1), 128)
            return 0, [(0, None, ScanSchedule(count, block, True, warps(count * block)))]
        whole = ScanSchedule(1, BLOCK, False, 8)
        if likely <= 2 * BLOCK:
            return 0, [(0, None, whole)]
        # little work in all: more programs, that find more totals
        is_little = facts.hint(rows) * likely <= LITTLE
        block = BLOCK // 2 if is_little else BLOCK
        piece = block * ceildiv(likely, block * PIECES)
        split = ScanSchedule(1, block, False, block // 512, piece)
        return settled(rows, [(0, few, split), (few + 1, None, whole)], facts)
