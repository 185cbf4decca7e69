"""Reduce: rows against one axis, which fits a tile (persistent) or is swept a phase (looped)."""

from collections.abc import Sequence

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import DType
from ..loops import LoopKernel, Reduce, Reduction
from ..templates.reduce import ReduceSchedule
from .combine import Fold, fold_of
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
            for phase in self.part.phases:
                self.sweep(phase, lanes)
            self.row_stores()
            if self.part.stores:
                with self.loop():
                    tile = self.step(lanes)
                    tile.write(self.part.stores)
        return (ceildiv(total, rows),)

    # ---- the axis ----

    def tile(self, index: str, mask: str | None) -> Env:
        """Elements at rows x axis, the axis at `index`."""
        name = self.part.axis.name
        axes = {**self.rows, name: AxisVar(index, frozenset([AXIS]), mask)}
        return self.env(axes, self.shape, self.refs)

    def loop(self):
        """The loop over the axis in steps; the step's start is `at`."""
        extent = self.scalars.dim(self.part.axis.extent).text
        header = f"for at in range(0, {extent}, {self.schedule.block}):"
        return self.body.block(header, [self.part.axis.name])

    def step(self, lanes: str) -> Env:
        """Elements of the current step of `loop`."""
        name = frozenset([self.part.axis.name])
        index = self.body.name(f"at + {lanes}", name, "col")
        extent, block = self.part.axis.extent, self.schedule.block
        return self.tile(index, self.scalars.below(index, extent, block, name))

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

    def fold(self, reduction: Reduction) -> Fold:
        """How the reduction runs over tiles."""
        fold = fold_of(self.body, reduction, self.shape, self.kernel)
        self.helpers += "".join(h for h in fold.helpers if h not in self.helpers)
        return fold

    def whole(self, reduction: Reduction, tile: Env) -> None:
        """A reduction over an axis that is one tile."""
        fold = self.fold(reduction)
        self.define(reduction, fold.whole(*self.prepared(tile, reduction, fold)))

    def sweep(self, phase: Sequence[Reduction], lanes: str) -> None:
        """One loop over the axis for all reductions of a phase."""
        folds = [self.fold(reduction) for reduction in phase]
        for fold in folds:
            fold.begin()
        with self.loop():
            tile = self.step(lanes)
            for reduction, fold in zip(phase, folds):
                fold.add(*self.prepared(tile, reduction, fold), frozenset([self.part.axis.name]))
        for reduction, fold in zip(phase, folds):
            self.define(reduction, fold.result())

    def define(self, reduction: Reduction, text: str) -> None:
        """Make the reduction's result known by its name."""
        names = frozenset(a.name for a in self.part.rows)
        self.refs[reduction.name] = Val(self.body.name(text, prefix="r"), names, frozenset([ROWS]))

    def row_stores(self) -> None:
        """Stores made once a row."""
        env = self.env(self.rows, [self.schedule.rows, 1], self.refs)
        env.write(self.part.row_stores)
