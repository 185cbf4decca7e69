"""Reduce: rows against one axis, which fits a tile (persistent) or is swept a phase (looped)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from ...ir.dim import Dim, ceildiv, product, symbols_of
from ...ir.types import DType
from ..elements import loads_of
from ..loops import LoopKernel, Reduce, Reduction
from ..templates.reduce import ReduceSchedule
from .combine import Fold, fold_of, sum_beside
from .elements import AxisVar, Env, Val
from .launch import Context, Emitter
from .split_kernels import Piece, split_rows

ROWS, AXIS = 0, 1  # dims of the tile


def reduce_pieces(kernel: LoopKernel, schedule: ReduceSchedule) -> Sequence[Piece]:
    """One launch, or one over pieces of rows and one that joins them."""
    return [Piece(kernel, schedule)] if schedule.splits == 1 else split_rows(kernel, schedule)


class ReduceEmitter(Emitter):
    """One launch of ceil(rows / schedule.rows) programs."""

    part: Reduce

    def __init__(self, kernel: LoopKernel, schedule: ReduceSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        self.extents = (*self.part.rows, self.part.axis)
        self.refs: dict[str, Val] = {}

    def emit(self) -> tuple[Dim, ...]:
        rows, block = self.schedule.rows, self.schedule.block
        total = product(a.extent for a in self.part.rows)
        if rows == 1:
            row = AxisVar(self.body.name("tl.program_id(0)", prefix="row"))
        else:
            row = self.scalars.span(f"tl.program_id(0) * {rows}", rows, ROWS, total, "row")
        self.rows = self.scalars.split(self.part.rows, row)
        self.shape = [rows, block]
        lanes = self.body.name(f"tl.arange(0, {block})[None, :]", prefix="lane")
        if self.schedule.is_persistent:
            # one tile there always is, also over nothing
            is_full = self.facts.proved_eq(self.part.axis.extent, block)
            mask = None if is_full else self.scalars.below(lanes, self.part.axis.extent)
            tile = self.tile(lanes, mask)
            for phase in self.part.phases:
                for reduction in phase:
                    self.whole(reduction, tile)
            self.row_stores()
            tile.write(self.part.stores)
        else:
            self.sweep_all(lanes)
        return (ceildiv(total, rows),)

    # ---- the axis ----

    def tile(self, index: str, mask: str | None, eviction: str = "") -> Env:
        """Elements at rows x axis, the axis at `index`."""
        name = self.part.axis.name
        axes = {**self.rows, name: AxisVar(index, frozenset([AXIS]), mask)}
        policies = dict.fromkeys(self.own, eviction) if eviction else {}
        return self.env(axes, self.shape, self.refs, policies)

    @contextmanager
    def loop(self, lanes: str, turn: int, last: int, *, may_go_back: bool = True) -> Iterator[Env]:
        """Sweep number `turn` of 0 .. `last` over the axis; -> elements of its current step.

        Every other one goes back, over what the one before has just read: the cache holds that end.
        """
        goes_back = turn % 2 == 1 and may_go_back
        name, extent, block = self.part.axis.name, self.part.axis.extent, self.schedule.block
        depends, length = frozenset([name]), self.scalars.dim(extent).text
        at = "back" if goes_back else "at"
        with self.body.block(f"for {at} in range(0, {length}, {block}):", depends):
            if goes_back:
                self.body.line(f"at = ({length} - 1) // {block} * {block} - back")
            index = self.body.name(f"at + {lanes}", depends, "col")
            eviction = ("evict_first" if turn == last else "evict_last") if last else ""
            yield self.tile(index, self.scalars.below(index, extent, block, depends), eviction)

    @cached_property
    def own(self) -> list[int]:
        """Parameters of which each row has elements of its own."""
        rows = {a.name for a in self.part.rows}
        loads = [x for x in loads_of(self.part) if self.part.axis.name in symbols_of(x.offset)]
        shared = {x.param for x in loads if rows and rows.isdisjoint(symbols_of(x.offset))}
        return sorted({x.param for x in loads} - shared)

    # ---- reductions ----

    def masked(self, tile: Env, value: Val, dtype: DType, start: float | int | bool) -> str:
        """The value over the whole tile, the identity where the axis has ended."""
        value = tile.inside(self.part.axis, value, start, dtype)
        if AXIS in value.dims and (self.schedule.rows == 1 or ROWS in value.dims):
            return value.text
        depends = value.axes | {self.part.axis.name}
        return self.body.name(f"tl.broadcast_to({value.text}, {self.shape})", depends)

    def prepared(self, tile: Env, reduction: Reduction, fold: Fold) -> tuple[str, str]:
        """The tile to reduce, and the index along the axis."""
        value = tile.to(tile.value(reduction.value), reduction.value.dtype, fold.dtype)
        text = self.masked(tile, value, fold.dtype, fold.start)
        return text, tile.axes[self.part.axis.name].text

    def fold(self, reduction: Reduction, *, with_sum: bool = False) -> Fold:
        """How the reduction runs over tiles, `with_sum` with the sum beside it."""
        fold = fold_of(self.body, reduction, self.shape, self.kernel, with_sum=with_sum)
        self.helpers += "".join(h for h in fold.helpers if h not in self.helpers)
        return fold

    def whole(self, reduction: Reduction, tile: Env) -> None:
        """A reduction over an axis that is one tile."""
        fold = self.fold(reduction)
        self.define(reduction, fold.whole(*self.prepared(tile, reduction, fold)))

    def sweep_all(self, lanes: str) -> None:
        """A sweep for each phase, and one for the stores along the axis."""
        phases = [list(phase) for phase in self.part.phases]
        sums: dict[str, Reduction] = {}  # made along with the largest of their exponents
        for phase, *following in (phases[i:] for i in range(len(phases))):
            for reduction in phase:
                if (found := sum_beside(reduction, following)) is not None:
                    sums[reduction.name] = found
                    following[0].remove(found)
        phases = [phase for phase in phases if phase]
        last = len(phases) - (not self.part.stores)
        for turn, phase in enumerate(phases):
            folds = [(self.fold(r, with_sum=r.name in sums), r) for r in phase]
            for fold, _ in folds:
                fold.begin()
            is_free = all(fold.any_order for fold, _ in folds)
            with self.loop(lanes, turn, last, may_go_back=is_free) as tile:
                for fold, r in folds:
                    fold.add(*self.prepared(tile, r, fold), frozenset([self.part.axis.name]))
            for fold, r in folds:
                self.define(r, fold.result())
                if r.name in sums:
                    self.define(sums[r.name], fold.total(self.refs[r.name].text))
        self.row_stores()
        if self.part.stores:
            with self.loop(lanes, last, last) as tile:
                tile.write(self.part.stores)

    def define(self, reduction: Reduction, text: str) -> None:
        """Make the reduction's result known by its name."""
        names = frozenset(a.name for a in self.part.rows)
        self.refs[reduction.name] = Val(self.body.name(text, prefix="r"), names, frozenset([ROWS]))

    def row_stores(self) -> None:
        """Stores made once a row."""
        env = self.env(self.rows, [self.schedule.rows, 1], self.refs)
        env.write(self.part.row_stores)
