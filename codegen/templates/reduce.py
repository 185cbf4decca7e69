"""Kernels over rows: phases of reductions over one axis, then stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.axes import combined_axes
from ...ir.dim import Dim, product
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.indexing import delinearize
from ...ir.target import REFERENCE, Target
from ...ir.types import i64
from ..cost import scaled
from ..elements import index_facts, loads_of
from ..forward import forward_index, store_at, trailing_views
from ..groups import Group, spread, squeezed
from ..inline import Inliner, build_scalar
from ..loops import (
    Axis,
    Const,
    Element,
    Index,
    LoopKernel,
    Reduce,
    Reduction,
    Ref,
    Store,
    accumulated,
)
from .rows import Rows
from .template import (
    WARPS,
    Bucket,
    Schedule,
    Template,
    clip,
    factor,
    power_of_2,
    powers_of_2,
    warps,
)

PERSISTENT = 16384  # the longest row that a program holds whole: a quarter of 65536 registers
FEW_ROWS = 32  # longer rows, this few on sm_90, are each shared out among programs


@dataclass(frozen=True)
class ReduceSchedule(Schedule):
    """`rows` rows a program; the axis in one tile (`is_persistent`) or in steps of `block`.

    `splits` > 1: each row is cut into that many equal pieces, joined by a launch after.
    """

    domain: ClassVar = {
        "rows": powers_of_2(1, 128),
        "block": powers_of_2(1, PERSISTENT),
        "num_warps": WARPS,
        "splits": range(1, 65),
    }

    rows: int
    block: int
    is_persistent: bool
    num_warps: int = 4
    splits: int = 1


class ReduceTemplate(Template):
    """Reductions over the same rows, and what comes before and after."""

    name = "reduce"
    kinds = frozenset(("reduce", "composite"))
    parts = (Reduce,)
    grows_over = "rows"

    def why_not(self, group: Group, node: Node) -> str | None:
        if node is group.anchor:
            return None
        if group.follows(node):
            return Rows(group).why_not(node)
        return None if node.op.kind == "elementwise" else f"{node.op.name} before a reduction"

    def why_not_stored(self, group: Group, node: Node) -> str | None:
        return None if Rows(group).stores(node) else "it is half a row"

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Reduce]:
        return (_RowLowering(inliner, nodes).lower(outputs),)

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        rows = product(a.extent for a in part.rows)
        whole = reduce_schedule(part, facts, target)
        splits = row_splits(part, target)
        if splits is None:
            return 0, [(0, None, whole)]
        chunk = power_of_2(part.axis.extent // splits)
        split = ReduceSchedule(1, chunk, True, warps(chunk), splits)
        few = scaled(FEW_ROWS, target)
        return rows, clip([(0, few, split), (few + 1, None, whole)], facts, rows)


class _RowLowering:
    def __init__(self, inliner: Inliner, nodes: Sequence[Node]):
        self.inliner = inliner
        self.reductions = [n for n in nodes if n.op.kind == "reduce"]
        first = self.reductions[0]
        self.shape = first.operands[0].shape
        self.reduced = combined_axes(first)
        kept = [i for i in range(len(self.shape)) if i not in self.reduced]
        self.row_index = tuple(inliner.axis(f"_i{i}", self.shape[i]) for i in kept)
        self.rows = tuple(Axis(f"_i{i}", self.shape[i]) for i in kept if self.shape[i] != 1)
        extents = [self.shape[i] for i in sorted(self.reduced)]
        self.axis = Axis("_r", product(extents))
        r = inliner.axis("_r", self.axis.extent)
        places = iter(delinearize(r, extents, inliner.facts))
        rows = iter(self.row_index)
        self.index = tuple(
            next(places) if i in self.reduced else next(rows) for i in range(len(self.shape))
        )

    def lower(self, outputs: list[Value]) -> Reduce:
        depths = self.depths()
        phases: list[list[Reduction]] = [[] for _ in range(max(depths.values()))]
        for number, node in enumerate(self.reductions):
            phases[depths[node] - 1].append(self.reduction(f"red{number}", node))
        row_stores, stores = [], []
        for output in outputs:
            store, is_row = self.store(output)
            (row_stores if is_row else stores).append(store)
        return Reduce(
            self.rows, self.axis, tuple(map(tuple, phases)), tuple(row_stores), tuple(stores)
        )

    def depths(self) -> dict[Node, int]:
        """How many reductions lie one after another up to each."""
        memo: dict[Value, int] = {}

        def depth(value: Value) -> int:
            if not self.inliner.is_inside(value):
                return 0
            if value not in memo:
                inner = max((depth(v) for v in value.node.operands), default=0)
                memo[value] = inner + (value.node.op.kind == "reduce")
            return memo[value]

        return {n: depth(n.results[0]) for n in self.reductions}

    def reduction(self, name: str, node: Node) -> Reduction:
        (operand,) = node.operands
        assert combined_axes(node) == self.reduced, f"{node.op.name} reduces other axes"
        value = self.inliner.element(operand, self.index)
        result = reduced(name, node, self.axis.extent)

        def read(index: tuple[Dim, ...]) -> Element:
            if node.attrs["keepdims"]:
                index = tuple(at for i, at in enumerate(index) if i not in self.reduced)
            assert index == self.row_index, f"row {self.row_index} reads {node.op.name} of {index}"
            return result

        self.inliner.bound[node.results[0]] = read
        return Reduction(name, node.op.combine, value)

    def store(self, output: Value) -> tuple[Store, bool]:
        inliner = self.inliner
        source, views = trailing_views(inliner, output)
        row_shape = tuple(d for i, d in enumerate(self.shape) if i not in self.reduced)
        is_row = squeezed(source.shape) == squeezed(row_shape)
        shape, at = (row_shape, self.row_index) if is_row else (self.shape, self.index)
        index = spread(source.shape, shape, at)
        value = inliner.element(source, index)
        place = forward_index(inliner, views, source, index)
        return store_at(inliner, output, place, value), is_row


def reduced(name: str, node: Node, count: Dim) -> Element:
    """What a reduction of `count` elements makes of the result `name` of its combine."""
    if node.op.combine.picks_index:
        return Ref(name, i64)
    x = accumulated(name, node.operands[0].dtype, node.op.combine)
    if node.op.finish_tree is None:
        return x
    size = Const(float(count), x.dtype) if isinstance(count, int) else Index(count, x.dtype)
    return build_scalar(node.op.finish_tree, {"x": x, "count": size}, {}, x.dtype)


# ---- schedules ----------------------------------------------------------------------------


def whole_row(target: Target) -> int:
    """The longest row that a program holds in registers."""
    return min(PERSISTENT, target.registers // 4)


def row_splits(part: Reduce, target: Target) -> int | None:
    """Into how many equal pieces a long row is cut; None where it cannot or need not be."""
    extent, whole = part.axis.extent, whole_row(target)
    if not isinstance(extent, int) or extent <= whole or not can_split(part):
        return None
    return next((s for s in range(64, 15, -1) if extent % s == 0 and extent // s <= whole), None)


def reduce_schedule(part: Reduce, facts: Facts, target: Target = REFERENCE) -> ReduceSchedule:
    """One program a long row, several short rows a program."""
    low, high = facts.bounds(part.axis.extent)
    is_strided, whole = _is_strided(part), whole_row(target)
    if low == high and high is not None and high <= whole:
        block = power_of_2(high)
        rows = 1 if block >= 1024 else min(1024 // block, 128)
        if is_strided:
            rows = max(rows, min(32, whole // block))
        return ReduceSchedule(rows, block, True, warps(rows * block))
    if is_strided:
        return ReduceSchedule(64, 64, False, 4)
    likely = facts.hint(part.axis.extent)
    block = min(max(power_of_2(likely), 128), 8192)
    rows = 1 if block >= 1024 else 4
    return ReduceSchedule(rows, block, False, warps(rows * block))


def _is_strided(part: Reduce) -> bool:
    """Whether neighbours along the last row axis, not along the axis, lie side by side."""
    if not part.rows:
        return False
    loads = loads_of(tuple(r.value for phase in part.phases for r in phase))
    strides = [
        (factor(x.offset, part.rows[-1].name), factor(x.offset, part.axis.name)) for x in loads
    ]
    return any(row == 1 and axis not in (0, 1) for row, axis in strides)


def can_split(part: Reduce) -> bool:
    """Whether rows of a reduction can be cut: one sweep, and nothing stored along the axis."""
    return len(part.phases) == 1 and not part.stores
