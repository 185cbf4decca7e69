"""Reduce: rows against one axis, which fits a tile (persistent) or is swept a phase (looped)."""

from collections.abc import Sequence
from dataclasses import replace

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import DType, f32, f64, i32, i64
from ..elements import index_facts
from ..loops import LoopKernel, Reduce, Reduction
from ..templates.reduce import ReduceSchedule, reduce_schedule
from .body import Body, Context, Emitted, finish
from .elements import AxisVar, Env, Val, axis_facts, identity
from .names import constant, value_type
from .pointwise import split_index
from .rewrite import Piece, split_rows

ROWS, AXIS = 0, 1  # dims of the tile


def reduce_pieces(
    kernel: LoopKernel, schedule: ReduceSchedule
) -> tuple[list[Piece], list[ReduceSchedule]]:
    """One launch, or one over pieces of rows and one that joins them."""
    if schedule.splits == 1:
        return [Piece(kernel)], [schedule]
    first, second = split_rows(kernel, schedule.splits)
    (join,) = second.kernel.parts
    joined = reduce_schedule(join, index_facts(second.kernel, ()))
    return [first, second], [replace(schedule, splits=1), joined]


def emit_reduce(kernel: LoopKernel, schedule: ReduceSchedule, context: Context) -> Emitted:
    """One launch of ceil(rows / schedule.rows) programs."""
    (part,) = kernel.parts
    assert isinstance(part, Reduce)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    _Emitter(kernel, part, schedule, body).emit()
    total = product(a.extent for a in part.rows)
    return finish(
        kernel,
        body,
        context,
        grid=(ceildiv(total, schedule.rows),),
        num_warps=schedule.num_warps,
    )


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Reduce, schedule: ReduceSchedule, body: Body):
        self.kernel, self.part, self.schedule, self.body = kernel, part, schedule, body
        self.facts = axis_facts(kernel, ())
        self.scalars = Env(body, kernel, (), {}, "", 0)
        self.refs: dict[str, Val] = {}

    def emit(self) -> None:
        rows, block = self.schedule.rows, self.schedule.block
        total = product(a.extent for a in self.part.rows)
        start = "tl.program_id(0)" if rows == 1 else f"tl.program_id(0) * {rows}"
        if rows == 1:
            self.row = self.body.name(start, prefix="row")
            row_dims: frozenset[int] = frozenset()
            mask = None
        else:
            self.row = self.body.name(f"{start} + tl.arange(0, {rows})[:, None]", prefix="row")
            row_dims = frozenset([ROWS])
            mask = self._below(self.row, total, rows)
        self.rows = split_index(
            self.body, self.kernel, self.facts, self.part.rows, self.row, row_dims, mask
        )
        self.row_mask = mask
        self.shape = f"[{rows}, {block}]"
        lanes = self.body.name(f"tl.arange(0, {block})[None, :]", prefix="lane")
        if self.schedule.is_persistent:
            # one tile there always is, also over nothing
            is_full = self.facts.proved_eq(self.part.axis.extent, block)
            tile = self.tile(lanes, None if is_full else self._inside(lanes, self.part.axis.extent))
            for phase in self.part.phases:
                for reduction in phase:
                    self.whole(reduction, tile)
            self.row_stores()
            for store in self.part.stores:
                tile.store(store)
            return
        for phase in self.part.phases:
            self.sweep(phase, lanes)
        self.row_stores()
        if self.part.stores:
            with self.loop():
                tile = self.step(lanes)
                for store in self.part.stores:
                    tile.store(store)

    # ---- the axis ----

    def tile(self, index: str, mask: str | None) -> Env:
        """Elements at rows x axis, the axis at `index`."""
        name = self.part.axis.name
        axes = {**self.rows, name: AxisVar(index, frozenset([AXIS]), mask)}
        extents = (*self.part.rows, self.part.axis)
        return Env(self.body, self.kernel, extents, axes, self.shape, 2, self.refs)

    def loop(self):
        """The loop over the axis in steps; the step's start is `at`."""
        extent = self.scalars.dim(self.part.axis.extent).text
        header = f"for at in range(0, {extent}, {self.schedule.block}):"
        return self.body.block(header, [self.part.axis.name])

    def step(self, lanes: str) -> Env:
        """Elements of the current step of `loop`."""
        name = frozenset([self.part.axis.name])
        index = self.body.name(f"at + {lanes}", name, "col")
        return self.tile(
            index, self._below(index, self.part.axis.extent, self.schedule.block, name)
        )

    def _below(
        self, index: str, extent: Dim, step: int, axes: frozenset[str] = frozenset()
    ) -> str | None:
        """The mask of tiles of `step` that are as many as the extent takes: none over nothing."""
        if self.facts.proved_multiple(extent, step):
            return None
        return self._inside(index, extent, axes)

    def _inside(self, index: str, extent: Dim, axes: frozenset[str] = frozenset()) -> str:
        return self.body.name(f"{index} < {self.scalars.dim(extent).text}", axes, "in")

    # ---- reductions ----

    def masked(self, tile: Env, value: Val, dtype: DType, start: float | int | bool) -> str:
        """The value over the whole tile, the identity where the axis has ended."""
        axis = tile.axes[self.part.axis.name]
        text = value.text
        if axis.mask is not None:
            full = tile._full(constant(start, dtype), dtype)
            text = self.body.name(
                f"tl.where({axis.mask}, {text}, {full})", value.axes | {self.part.axis.name}
            )
        lacks_axis = AXIS not in value.dims and axis.mask is None
        if lacks_axis or (self.schedule.rows > 1 and ROWS not in value.dims):
            text = self.body.name(
                f"tl.broadcast_to({text}, {self.shape})", value.axes | {self.part.axis.name}
            )
        return text

    def prepared(self, tile: Env, reduction: Reduction) -> tuple[str, DType, float | int | bool]:
        """The tile to reduce, its dtype, and the identity."""
        dtype = accumulator(reduction)
        value = tile.to(tile.value(reduction.value), reduction.value.dtype, dtype)
        start = identity(reduction.op, dtype)
        return self.masked(tile, value, dtype, start), dtype, start

    def whole(self, reduction: Reduction, tile: Env) -> None:
        """A reduction over an axis that is one tile."""
        text, dtype, _ = self.prepared(tile, reduction)
        if reduction.op.startswith("arg"):
            key = self.body.name(arg_key(text, dtype, reduction.op))
            index = tile.axes[self.part.axis.name].text
            self.define(
                reduction, self.arg_result(key, f"{index} + tl.zeros({self.shape}, tl.int32)")
            )
        else:
            self.define(reduction, folded(reduction.op, text, dtype, reduction.dtype))

    def sweep(self, phase: Sequence[Reduction], lanes: str) -> None:
        """One loop over the axis for all reductions of a phase."""
        body = self.body
        states = []
        for reduction in phase:
            dtype = accumulator(reduction)
            start = constant(identity(reduction.op, dtype), dtype)
            acc = body.fresh("acc")
            if reduction.op.startswith("arg"):
                low = "-9223372036854775808"
                body.line(f"{acc} = tl.full({self.shape}, {low}, tl.int64)")
                body.line(f"{acc}_at = tl.zeros({self.shape}, tl.int32)")
            else:
                body.line(f"{acc} = tl.full({self.shape}, {start}, {value_type(dtype)})")
            states.append((reduction, acc, dtype))
        with self.loop():
            tile = self.step(lanes)
            for reduction, acc, dtype in states:
                text, _, _ = self.prepared(tile, reduction)
                if reduction.op.startswith("arg"):
                    index = tile.axes[self.part.axis.name].text
                    key = body.name(
                        f"({arg_key(text, dtype, reduction.op)}).to(tl.int64)",
                        frozenset([self.part.axis.name]),
                    )
                    better = body.fresh("better")
                    body.line(f"{better} = {key} > {acc}")
                    body.line(f"{acc} = tl.where({better}, {key}, {acc})")
                    body.line(f"{acc}_at = tl.where({better}, {index}, {acc}_at)")
                else:
                    body.line(f"{acc} = {joined(reduction.op, acc, text, dtype)}")
        for reduction, acc, dtype in states:
            if reduction.op.startswith("arg"):
                self.define(reduction, self.arg_result(acc, f"{acc}_at"))
            else:
                self.define(reduction, folded(reduction.op, acc, dtype, reduction.dtype))

    def arg_result(self, key: str, index: str) -> str:
        """The first index whose key is the largest."""
        top = self.body.name(f"tl.max({key}, axis=1, keep_dims=True)")
        return (
            f"tl.min(tl.where({key} == {top}, {index}, 2147483647), axis=1, keep_dims=True)"
            ".to(tl.int64)"
        )

    def define(self, reduction: Reduction, text: str) -> None:
        """Make the reduction's result known by its name."""
        names = frozenset(a.name for a in self.part.rows)
        self.refs[reduction.name] = Val(self.body.name(text, prefix="r"), names, frozenset([ROWS]))

    def row_stores(self) -> None:
        """Stores made once a row."""
        rows = self.schedule.rows
        env = Env(self.body, self.kernel, self.part.rows, self.rows, f"[{rows}, 1]", 2, self.refs)
        for store in self.part.row_stores:
            env.store(store)


def accumulator(reduction: Reduction) -> DType:
    """The dtype a reduction runs in."""
    source = reduction.value.dtype
    if reduction.op.startswith("arg"):
        return source if source.name != "bool" else i32
    if source.name == "bool" or reduction.op in ("any", "all"):
        return i32 if reduction.op in ("any", "all", "max", "min") else reduction.dtype
    if reduction.op in ("sum", "prod"):
        return (f64 if source == f64 else f32) if source.is_float else i64
    return source


def arg_key(text: str, dtype: DType, op: str) -> str:
    """An integer that orders as the float does, with NaN above all; -0 equals 0.

    For argmin the order is turned round and NaN stays above all.
    """
    flip = "~" if op == "argmin" else ""
    if not dtype.is_float:
        return f"{flip}({text})"
    bits, low = ("tl.int64", 63) if dtype == f64 else ("tl.int32", 31)
    top = 2**low - 1
    raw = f"({text} + 0.0).to({bits}, bitcast=True)"
    ordered = f"({raw} ^ (({raw} >> {low}) & {top}))"
    return f"tl.where({text} != {text}, {top}, {flip}{ordered})"


def folded(op: str, text: str, dtype: DType, result: DType) -> str:
    """A tile reduced over its axis to one column."""
    nan = dtype.is_float
    if op in ("max", "min") and nan:
        out = f"tl.reduce({text}, 1, {op}_nan, keep_dims=True)"
    elif op == "prod":
        out = f"tl.reduce({text}, 1, product, keep_dims=True)"
    else:
        name = {"sum": "sum", "any": "max", "all": "min"}.get(op, op)
        out = f"tl.{name}({text}, axis=1, keep_dims=True)"
    if result.name == "bool":
        return f"{out} != 0"
    return out if result == dtype else f"{out}.to({value_type(result)})"


def joined(op: str, acc: str, text: str, dtype: DType) -> str:
    """The accumulator after one more step."""
    if op in ("sum", "prod"):
        return f"{acc} {'+' if op == 'sum' else '*'} {text}"
    name = "maximum" if op in ("max", "any") else "minimum"
    nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
    return f"tl.{name}({acc}, {text}{nan})"
