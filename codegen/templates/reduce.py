"""Kernels over rows: phases of reductions over one axis, then stores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.axes import combined_axes
from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.indexing import coefficient_of, delinearize
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
    merged,
    power_of_2,
    powers_of_2,
    settled,
    warps,
)

PERSISTENT = 32768  # the longest row that a program holds whole: half of 65536 registers
LONG, HELD = 16384, 8192  # the longest that is not cut, and of its pieces the longest that is held
TILE = 4096  # elements that a program sweeps at once
SIDE_BY_SIDE = (8, 64)  # neighbours across rows: what memory moves at once, and what suffices
MANY_ROWS = 1024  # on sm_90, of which programs with fewer threads fill the cores
FEW_ROWS = (32, 256)  # bounds of buckets, on sm_90, of which each cuts its rows into as many pieces
MOST_ROWS, MOST_PIECES = 128, 4096


@dataclass(frozen=True)
class _Cut:
    """How rows are cut: so that there are `programs`, on sm_90, each with `least` of a row."""

    programs: int
    least: int


ALONG, ACROSS = _Cut(2112, 512), _Cut(1056, 128)  # 16 programs a core, and 8 of several rows each


@dataclass(frozen=True)
class ReduceSchedule(Schedule):
    """`rows` rows a program; the axis in one tile (`is_persistent`) or in steps of `block`.

    `splits` > 1: each row is cut into that many pieces, joined by a launch after.
    """

    domain: ClassVar = {
        "rows": powers_of_2(1, MOST_ROWS),
        "block": powers_of_2(1, PERSISTENT),
        "num_warps": (*WARPS, 32),
        "splits": range(1, MOST_PIECES + 1),
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
        is_beside = node.op.kind == "reduce" and node.operands == group.anchor.operands
        if is_beside or group.follows(node):
            return Rows(group).why_not(node)
        if node.op.kind != "elementwise":
            return f"{node.op.name} before a reduction"
        if Rows(group).are_swept_again(PERSISTENT) and group.groups.takes_effort(node):
            return "an expensive value would be computed again in each sweep of a row"
        return None

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
        if whole.is_persistent and not is_one_sweep(part):
            return 0, [(0, None, whole)]
        if isinstance(rows, int):
            is_few = is_one_sweep(part) or rows <= scaled(FEW_ROWS[0], target) * whole.rows
            few = cut(part, whole, rows, facts, target) if is_few else whole
            return 0, [(0, None, few)]
        table: list[Bucket] = []
        first = 0
        for few in FEW_ROWS if is_one_sweep(part) else FEW_ROWS[:1]:
            most = scaled(few, target) * whole.rows
            table.append((first, most, cut(part, whole, most, facts, target)))
            first = most + 1
        return settled(rows, merged([*table, (first, None, whole)]), facts)


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


def reduce_schedule(part: Reduce, facts: Facts, target: Target = REFERENCE) -> ReduceSchedule:
    """One program a long row, several short rows a program."""
    low, high = facts.bounds(part.axis.extent)
    length = power_of_2(high) if low == high and high is not None else None
    # what is swept once need not be held
    whole = min(LONG if is_one_sweep(part) else PERSISTENT, target.registers // 2)
    if is_strided(part):
        return _across_schedule(part, length, whole, facts, target)
    most = target.max_threads // target.warp_size
    if length is not None and length <= whole:
        rows = 1 if length >= 1024 else min(1024 // length, MOST_ROWS)
        count = warps(rows * length) if length <= LONG else 32
        if facts.hint(product(a.extent for a in part.rows)) >= scaled(MANY_ROWS, target):
            count = min(count, max(length // 1024, 4))  # fewer wait for each other, more have work
        return ReduceSchedule(rows, length, True, min(count, most))
    likely = facts.hint(part.axis.extent)
    block = min(max(power_of_2(likely), 128), TILE)
    rows = 1 if block >= 1024 else 4
    # several sweeps keep much for each element: more threads
    count = warps(rows * block) * (1 if is_one_sweep(part) else 2)
    return ReduceSchedule(rows, block, False, min(count, most))


def _across_schedule(
    part: Reduce, length: int | None, whole: int, facts: Facts, target: Target
) -> ReduceSchedule:
    """Neighbouring rows side by side, held where a second sweep would read them again."""
    least, enough = SIDE_BY_SIDE
    count = power_of_2(facts.hint(product(a.extent for a in part.rows)))
    pieces = 1
    if is_one_sweep(part):
        pieces = max(facts.hint(part.axis.extent) // ACROSS.least, 1)
    elif length is not None and whole // length >= min(least, count):
        rows = min(whole // length, max(TILE // length, 2 * least), count, MOST_ROWS)
        count = warps(rows * length) if rows * length <= LONG else 32
        most = target.max_threads // target.warp_size
        return ReduceSchedule(rows, length, True, min(count, most))
    # narrower where there are too few programs
    rows = min(max(least, count * pieces // scaled(ACROSS.programs, target)), enough, count)
    if length is not None:
        rows = max(rows, min(TILE // 8 // length, count, MOST_ROWS))
    rows = power_of_2(rows)
    block = min((2 if is_one_sweep(part) else 1) * TILE // rows, length or TILE)
    return ReduceSchedule(rows, block, block == length, min(warps(rows * block), 8))


def cut(
    part: Reduce, whole: ReduceSchedule, rows: int, facts: Facts, target: Target
) -> ReduceSchedule:
    """The schedule `whole`, with rows in pieces where there are `rows` of them at most."""
    length, is_across = facts.hint(part.axis.extent), is_strided(part)
    programs = ceildiv(max(rows, 1), whole.rows)
    how = ACROSS if is_across else ALONG
    wanted = min(scaled(how.programs, target), MOST_PIECES) // programs
    splits = min(wanted, length // how.least)
    if splits < 2 or not (is_across or length > LONG):
        return whole
    # equal pieces, where a number like that gives them
    splits = next((s for s in range(splits, splits // 4, -1) if length % s == 0), splits)
    if is_across:
        return replace(whole, splits=splits)
    block = power_of_2(piece_of(length, splits))
    is_whole = isinstance(part.axis.extent, int) and block <= min(HELD, target.registers // 2)
    block = block if is_whole else TILE
    return ReduceSchedule(1, block, is_whole, warps(block), splits)


def piece_of(extent: Dim, splits: int) -> Dim:
    """Elements of one of `splits` pieces of a row: equal ones, or all but the last of 64s."""
    if isinstance(extent, int) and extent % splits == 0:
        return extent // splits
    return 64 * ceildiv(extent, 64 * splits)


def is_strided(part: Reduce) -> bool:
    """Whether neighbours along the last row axis, not along the axis, lie side by side."""
    if not part.rows:
        return False
    loads = loads_of(tuple(r.value for phase in part.phases for r in phase))
    across, along = part.rows[-1].name, part.axis.name
    steps = [(coefficient_of(x.offset, across), coefficient_of(x.offset, along)) for x in loads]
    return any(row == 1 and step not in (0, 1) for row, step in steps)


def is_one_sweep(part: Reduce) -> bool:
    """Whether a reduction reads its rows once, so that cutting them costs no more reading."""
    return len(part.phases) == 1 and not part.stores
