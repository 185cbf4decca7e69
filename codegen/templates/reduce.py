"""Kernels over rows: phases of reductions over one axis, then stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim, product
from ...ir.errors import UnsupportedOp
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.indexing import delinearize, linearize
from ...ir.scalar import parse_scalar
from ...ir.target import Target
from ...ir.types import i64
from ..cost import scaled
from ..elements import index_facts, loads_of
from ..forward import forward_index, trailing_views
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

PERSISTENT = 16384  # the longest row that a program holds whole
LONG_ROW, FEW_ROWS = PERSISTENT + 1, 32  # rows this long, this few, are each shared out


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

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Reduce]:
        return (_RowLowering(inliner, nodes).lower(outputs),)

    def points(self, part: Reduce) -> Dim:
        return product(a.extent for a in (*part.rows, part.axis))

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        rows = product(a.extent for a in part.rows)
        whole = reduce_schedule(part, facts)
        splits = row_splits(part)
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
        self.reduced = _axes(first)
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
        same = [self.shape[i] for i in range(len(self.shape))]
        if _axes(node) != self.reduced or list(operand.shape) != same:
            raise UnsupportedOp(
                "two reductions of one kernel run over different axes",
                where=node.loc or "",
                facts=f"{operand.type} over {sorted(_axes(node))}, the first over "
                f"{sorted(self.reduced)} of [{', '.join(map(str, self.shape))}]",
                fix="partition them into two groups",
            )
        value = self.inliner.element(operand, self.index)
        result = self.result(name, node)
        self.inliner.bound[node.results[0]] = lambda index: self.check(node, index, result)
        return Reduction(name, node.op.combine, value)

    def result(self, name: str, node: Node) -> Element:
        combine, (operand,) = node.op.combine, node.operands
        if combine.picks_index:
            return Ref(name, i64)
        x = accumulated(name, operand.dtype, combine)
        if node.op.finish is None:
            return x
        count = self.axis.extent
        size = Const(float(count), x.dtype) if isinstance(count, int) else Index(count, x.dtype)
        tree = parse_scalar(node.op.finish, ("x", "count"), ())
        return build_scalar(tree, {"x": x, "count": size}, {}, x.dtype)

    def check(self, node: Node, index: tuple[Dim, ...], result: Element) -> Element:
        if node.attrs["keepdims"]:
            index = tuple(at for i, at in enumerate(index) if i not in self.reduced)
        if index != self.row_index:
            raise UnsupportedOp(
                "a row's reduction is read from another row",
                where=node.loc or "",
                facts=f"row {self.row_index} reads row {index}",
                fix="partition the reader into another group",
            )
        return result

    def store(self, output: Value) -> tuple[Store, bool]:
        inliner = self.inliner
        source, views = trailing_views(inliner, output)
        row_shape = [d for i, d in enumerate(self.shape) if i not in self.reduced]
        is_row = _squeezed(source.shape) == _squeezed(row_shape)
        if is_row:
            index = _spread(source.shape, row_shape, self.row_index)
        elif _squeezed(source.shape) == _squeezed(self.shape):
            index = _spread(source.shape, self.shape, self.index)
        else:
            raise UnsupportedOp(
                "an output of a reduction's kernel has neither the shape of a row's value nor of"
                " what is reduced",
                where=output.node.loc or "",
                facts=f"{source.type}; rows {row_shape} of {list(self.shape)}",
                fix="partition it into another group",
            )
        value = inliner.element(source, index)
        at = forward_index(inliner, views, source, index)
        return Store(
            inliner.param(output, is_written=True), linearize(at, output.shape), value
        ), is_row


def _axes(node: Node) -> frozenset[int]:
    rank = node.operands[0].type.rank
    axes = (node.attrs["axis"],) if "axis" in node.attrs else node.attrs["axes"]
    return frozenset(a % rank for a in axes)


def _squeezed(shape: Sequence[Dim]) -> list[Dim]:
    return [d for d in shape if d != 1]


def _spread(shape: Sequence[Dim], like: Sequence[Dim], index: Sequence[Dim]) -> tuple[Dim, ...]:
    """`index` over `like`, moved to the axes of `shape`, which differs in axes of size 1 only."""
    rest = iter(at for at, d in zip(index, like, strict=True) if d != 1)
    return tuple(0 if d == 1 else next(rest) for d in shape)


# ---- schedules ----------------------------------------------------------------------------


def row_splits(part: Reduce) -> int | None:
    """Into how many equal pieces a long row is cut; None where it cannot or need not be."""
    extent = part.axis.extent
    if not isinstance(extent, int) or extent < LONG_ROW or not can_split(part):
        return None
    return next(
        (s for s in range(64, 15, -1) if extent % s == 0 and extent // s <= PERSISTENT), None
    )


def reduce_schedule(part: Reduce, facts: Facts) -> ReduceSchedule:
    """One program a long row, several short rows a program."""
    low, high = facts.bounds(part.axis.extent)
    is_strided = _is_strided(part)
    if low == high and high is not None and high <= PERSISTENT:
        block = power_of_2(high)
        rows = 1 if block >= 1024 else min(1024 // block, 128)
        if is_strided:
            rows = max(rows, min(32, PERSISTENT // block))
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
