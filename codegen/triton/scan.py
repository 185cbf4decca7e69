"""Scan: rows against one axis in steps, what has come so far carried along.

Few long rows are cut into pieces that programs share: a launch in front finds what each piece comes
to, and every program of the second combines the pieces before its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ir.dim import Dim, ceildiv, product
from ...ir.scalar import COMMUTATIVE
from ...ir.types import TensorType, bool_
from ..loops import LoopKernel
from ..templates.scan import RESULT, Scan, ScanSchedule
from ..templates.template import power_of_2
from .combine import LAST, carried, combine_function, last_column
from .elements import AxisVar, Env, Val
from .launch import Context, Emitter
from .names import constant, value_type
from .split_kernels import Piece, handed_on

ROWS, AXIS = 0, 1  # dims of the tile
AT_ONCE = 1024  # totals of pieces that are combined at once


def scan_pieces(kernel: LoopKernel, schedule: ScanSchedule) -> Sequence[Piece]:
    """One launch; where rows are cut, one that leaves the pieces' totals, one that uses them."""
    if schedule.piece is None:
        return [Piece(kernel, schedule)]
    (part,) = kernel.parts
    assert isinstance(part, Scan)
    rows = product(a.extent for a in part.rows)
    count = ceildiv(part.axis.extent, schedule.piece)
    spaces = {"total": TensorType((rows, count), carried(part.dtype))}
    totals = replace(part, stores=())
    return handed_on(kernel, (totals, schedule), (part, schedule), spaces, ("_x", ""))


class ScanEmitter(Emitter):
    """One launch: programs over rows, and over pieces of them where they are cut."""

    waits = False
    part: Scan

    def __init__(self, kernel: LoopKernel, schedule: ScanSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.extents = (*part.rows, part.axis)
        self.helpers = LAST + combine_function(kernel, part.combine, part.dtype, "combined")
        self.dtype = carried(part.dtype)
        self.start = constant(part.combine.identity_of(part.dtype), self.dtype)
        self.kind = value_type(self.dtype)
        self.extent = self.scalars.dim(part.axis.extent).text

    def emit(self) -> tuple[Dim, ...]:
        part, body, rows, block = self.part, self.body, self.schedule.rows, self.schedule.block
        piece, total = self.schedule.piece, product(a.extent for a in part.rows)
        if piece is not None and not part.stores:
            # what the row is made of is there, so the launch that uses the totals may read it
            body.wait()
        body.start_dependents()
        if piece is None:
            body.wait()
        program = "tl.program_id(0)" if piece is None else "tl.program_id(1)"
        row = self.scalars.span(f"{program} * {rows}", rows, ROWS, total, "row")
        self.row, self.row_mask = row.text, row.mask
        self.rows = self.scalars.split(part.rows, row)
        self.lanes = body.name(f"tl.arange(0, {block})[None, :]", prefix="lane")
        body.line(f"carry = tl.full([{rows}, 1], {self.start}, {self.kind})")
        programs = ceildiv(total, rows)
        if piece is None:
            self.blocks(self.step, "0", self.extent, self.schedule.is_persistent)
            return (programs,)
        self.scan_piece(piece)
        return ceildiv(part.axis.extent, piece), programs

    def scan_piece(self, piece: int) -> None:
        """One piece of a row: what it comes to; or its results, from that of those before it."""
        part, body = self.part, self.body
        body.line("piece = tl.program_id(0)")
        count = self.scalars.dim(ceildiv(part.axis.extent, piece)).text
        own = len(self.kernel.params) - 1
        body.line(f"start = piece * {piece}")
        end, is_one = f"tl.minimum(start + {piece}, {self.extent})", piece == self.schedule.block
        if not part.stores:
            self.blocks(self.total, "start", end, is_one)
            mask = "" if self.row_mask is None else f", mask={self.row_mask}"
            body.line(f"tl.store(p{own} + {self.row} * {count} + piece, carry{mask})")
        elif is_one:  # scanned while the totals are made
            scanned = self.scan("start", ())
            body.wait()
            self.gather_totals(own, count)
            self.store(*scanned)
        else:
            body.wait()
            self.gather_totals(own, count)
            self.blocks(self.step, "start", end, is_one)

    def blocks(self, step: Callable, start: str, end: str, is_one: bool) -> None:
        """`step` for each block from `start` to `end`, of which there is one or any number."""
        if is_one:
            step(start, ())
            return
        axis = self.part.axis.name
        with self.body.block(f"for at in range({start}, {end}, {self.schedule.block}):", [axis]):
            step("at", (axis,))

    def gather_totals(self, own: int, count: str) -> None:
        """Carry: the combination of all pieces before this one."""
        body, part = self.body, self.part
        most = self.facts.bounds(ceildiv(part.axis.extent, self.schedule.piece))[1]
        width = AT_ONCE if most is None else min(power_of_2(most), AT_ONCE)
        lanes = body.name(f"tl.arange(0, {width})[None, :]", prefix="lane")
        with body.block(f"for first in range(0, piece, {width}):"):
            body.line(f"before = first + {lanes} < piece")
            mask = "before" if self.row_mask is None else f"before & {self.row_mask}"
            body.line(
                f"totals = tl.load(p{own} + {self.row} * {count} + first + {lanes}, "
                f"mask={mask}, other={self.start})"
            )
            body.line(f"carry = combined(carry, {self.folded('totals')})")

    def folded(self, values: str) -> str:
        """The combination of a tile's columns."""
        if self.part.combine.function in COMMUTATIVE:
            return f"tl.reduce({values}, 1, combined, keep_dims=True)"
        return last_column(f"tl.associative_scan({values}, 1, combined)", self.dtype)

    def tile(self, at: str, axes: tuple[str, ...]) -> tuple[str, Env]:
        """The block that starts at `at`, with the combine's identity past the end; its elements."""
        part, body, block = self.part, self.body, self.schedule.block
        depends = frozenset(axes)
        name = part.axis.name
        index = self.lanes if at == "0" else body.name(f"{at} + {self.lanes}", depends, "col")
        step = None if self.schedule.is_persistent else self.schedule.piece or block
        mask = self.scalars.below(index, part.axis.extent, step, depends)
        axis = AxisVar(index, frozenset([AXIS]), mask)
        env = self.env({**self.rows, name: axis}, [self.schedule.rows, block])
        value = env.to(env.value(part.value), part.value.dtype, part.dtype)
        text = env.whole(value)
        if mask is not None:
            text = body.name(f"tl.where({mask}, {text}, {self.start}).to({self.kind})", depends)
        elif part.dtype == bool_:
            text = body.name(f"{text}.to({self.kind})", depends)
        return text, env

    def total(self, at: str, axes: tuple[str, ...]) -> None:
        """Carry what the block comes to."""
        text, _ = self.tile(at, axes)
        self.body.line(f"carry = combined(carry, {self.folded(text)})")

    def scan(self, at: str, axes: tuple[str, ...]) -> tuple[str, Env]:
        """The block scanned by itself."""
        text, env = self.tile(at, axes)
        scanned = self.body.fresh("scan")
        self.body.line(f"{scanned} = tl.associative_scan({text}, 1, combined)")
        return scanned, env

    def store(self, scanned: str, env: Env) -> None:
        """The stores, with what came before."""
        part, body = self.part, self.body
        body.line(f"{scanned} = combined(carry, {scanned})")
        every = frozenset((*(a.name for a in part.rows), part.axis.name))
        result = scanned if part.dtype != bool_ else body.name(f"{scanned} != 0", every)
        env.refs[RESULT] = Val(result, every, frozenset([ROWS, AXIS]))
        env.write(part.stores)

    def step(self, at: str, axes: tuple[str, ...]) -> None:
        """Scan the block, and carry what it comes to."""
        scanned, env = self.scan(at, axes)
        self.store(scanned, env)
        self.body.line(f"carry = {last_column(scanned, self.dtype)}")
