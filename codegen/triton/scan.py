"""Scan: rows against one axis in steps, what has come so far carried along.

Few long rows are cut into pieces that programs share: a launch in front finds what each piece comes
to, and every program of the second combines the pieces before its own.
"""

from dataclasses import replace

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import DType, TensorType, bool_, i32
from ..elements import index_facts
from ..loops import LoopKernel, Param
from ..templates.scan import RESULT, Scan, ScanSchedule
from .body import Body, Context, Emitted, finish
from .combine import combine_function
from .elements import AxisVar, Env, Val
from .names import constant, value_type
from .pointwise import split_index
from .rewrite import Piece

ROWS, AXIS = 0, 1  # dims of the tile
AT_ONCE = 1024  # totals of pieces that are combined at once


def scan_pieces(
    kernel: LoopKernel, schedule: ScanSchedule
) -> tuple[list[Piece], list[ScanSchedule]]:
    """One launch; where rows are cut, one that leaves the pieces' totals, one that uses them."""
    if schedule.piece is None:
        return [Piece(kernel)], [schedule]
    (part,) = kernel.parts
    assert isinstance(part, Scan)
    rows = product(a.extent for a in part.rows)
    count = ceildiv(part.axis.extent, schedule.piece)
    totals = Param(TensorType((rows, count), carried(part.dtype)), True)
    first = replace(kernel, params=(*kernel.params, totals), parts=(replace(part, stores=()),))
    read = replace(totals, is_written=False)
    second = replace(kernel, params=(*kernel.params, read))
    return [Piece(first, ("total",), "_x"), Piece(second, ("total",))], [schedule] * 2


def emit_scan(kernel: LoopKernel, schedule: ScanSchedule, context: Context) -> Emitted:
    """One launch: programs over rows, and over pieces of them where they are cut."""
    (part,) = kernel.parts
    assert isinstance(part, Scan)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    helper = combine_function(kernel, part.combine, part.dtype, "combined")
    _Emitter(kernel, part, schedule, body).emit()
    grid: tuple[Dim, ...] = (ceildiv(product(a.extent for a in part.rows), schedule.rows),)
    if schedule.piece is not None:
        grid = (ceildiv(part.axis.extent, schedule.piece), *grid)
    return finish(kernel, body, context, grid=grid, num_warps=schedule.num_warps, helpers=helper)


def carried(dtype: DType) -> DType:
    """As what values of `dtype` are combined."""
    return i32 if dtype == bool_ else dtype


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Scan, schedule: ScanSchedule, body: Body):
        self.kernel, self.part, self.schedule, self.body = kernel, part, schedule, body
        self.facts = index_facts(kernel, ())
        self.scalars = Env(body, kernel, (), {}, "", 0)
        self.start = constant(part.combine.identity_of(part.dtype), carried(part.dtype))
        self.kind = value_type(carried(part.dtype))
        self.extent = self.scalars.dim(part.axis.extent).text

    def emit(self) -> None:
        part, body, rows, block = self.part, self.body, self.schedule.rows, self.schedule.block
        piece = self.schedule.piece
        program = "tl.program_id(0)" if piece is None else "tl.program_id(1)"
        self.row = body.name(f"{program} * {rows} + tl.arange(0, {rows})[:, None]", prefix="row")
        total = product(a.extent for a in part.rows)
        self.row_mask = None
        if not self.facts.proved_multiple(total, rows):
            self.row_mask = body.name(f"{self.row} < {self.scalars.dim(total).text}", prefix="in")
        self.rows = split_index(
            body, self.kernel, self.facts, part.rows, self.row, frozenset([ROWS]), self.row_mask
        )
        self.lanes = body.name(f"tl.arange(0, {block})[None, :]", prefix="lane")
        body.line(f"carry = tl.full([{rows}, 1], {self.start}, {self.kind})")
        if piece is None:
            if self.schedule.is_persistent:
                self.step("0", ())
                return
            with body.block(f"for at in range(0, {self.extent}, {block}):", [part.axis.name]):
                self.step("at", (part.axis.name,))
            return
        body.line("piece = tl.program_id(0)")
        count = self.scalars.dim(ceildiv(part.axis.extent, piece)).text
        own = len(self.kernel.params) - 1
        if part.stores:
            self.gather_totals(own, count)
        body.line(f"start = piece * {piece}")
        if piece == block:
            self.step("start", ())
        else:
            end = f"tl.minimum(start + {piece}, {self.extent})"
            with body.block(f"for at in range(start, {end}, {block}):", [part.axis.name]):
                self.step("at", (part.axis.name,))
        if not part.stores:
            mask = "" if self.row_mask is None else f", mask={self.row_mask}"
            body.line(f"tl.store(p{own} + {self.row} * {count} + piece, carry{mask})")

    def gather_totals(self, own: int, count: str) -> None:
        """Carry: the combination of all pieces before this one."""
        body = self.body
        lanes = body.name(f"tl.arange(0, {AT_ONCE})[None, :]", prefix="lane")
        with body.block(f"for first in range(0, piece, {AT_ONCE}):"):
            body.line(f"before = first + {lanes} < piece")
            mask = "before" if self.row_mask is None else f"before & {self.row_mask}"
            body.line(
                f"totals = tl.load(p{own} + {self.row} * {count} + first + {lanes}, "
                f"mask={mask}, other={self.start})"
            )
            body.line("totals = tl.associative_scan(totals, 1, combined)")
            body.line(f"carry = combined(carry, {self.last('totals', lanes, AT_ONCE)})")

    def last(self, values: str, lanes: str, width: int) -> str:
        """The last column of a tile."""
        column = f"tl.sum(tl.where({lanes} == {width - 1}, {values}, 0), axis=1, keep_dims=True)"
        return f"{column}.to({self.kind})"

    def step(self, at: str, axes: tuple[str, ...]) -> None:
        """Scan the block that starts at `at`, and carry what it comes to."""
        part, body, block = self.part, self.body, self.schedule.block
        depends = frozenset(axes)
        name = part.axis.name
        index = self.lanes if at == "0" else body.name(f"{at} + {self.lanes}", depends, "col")
        mask = None
        is_full = self.facts.proved_multiple(part.axis.extent, self.schedule.piece or block)
        if not is_full or self.schedule.is_persistent:
            mask = body.name(f"{index} < {self.extent}", depends, "in")
        axis = AxisVar(index, frozenset([AXIS]), mask)
        shape = f"[{self.schedule.rows}, {block}]"
        refs: dict[str, Val] = {}
        env = Env(
            body, self.kernel, (*part.rows, part.axis), {**self.rows, name: axis}, shape, 2, refs
        )
        value = env.to(env.value(part.value), part.value.dtype, part.dtype)
        text = env.whole(value)
        if mask is not None:  # past the end nothing is combined, or the carry would be wrong
            text = body.name(f"tl.where({mask}, {text}, {self.start}).to({self.kind})", depends)
        scanned = body.fresh("scan")
        body.line(f"{scanned} = tl.associative_scan({text}, 1, combined)")
        body.line(f"{scanned} = combined(carry, {scanned})")
        body.line(f"carry = {self.last(scanned, self.lanes, block)}")
        every = frozenset([a.name for a in part.rows] + [name])
        if part.dtype == bool_:
            scanned = body.name(f"{scanned} != 0", every)
        refs[RESULT] = Val(scanned, every, frozenset([ROWS, AXIS]))
        for store in part.stores:
            env.store(store)
