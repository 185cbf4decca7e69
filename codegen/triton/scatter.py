"""Scatter: tiles of the result, each of which takes its own among the updates, in their order.

A program holds `rows` places of the target against `width` lines behind it. It goes through all
updates, or, where launches in front have put these in order of their places, finds its own by
bisection.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...ir.dim import Dim, ceildiv, product, symbol
from ...ir.types import TensorType, bool_, i32
from ..elements import Numbering, index_facts
from ..loops import Axis, Cast, Index, LoopKernel, Param, Store, row_major
from ..templates.scatter import RESULT, Scatter, ScatterSchedule
from ..templates.sort import Sort
from .combine import carried, combine_function
from .elements import AxisVar, Env, Val
from .launch import Context, Emitter
from .names import value_type
from .sort import ordered_pieces
from .split_kernels import Piece

TARGET, INNER = frozenset([0]), frozenset([1])  # dims of the tile


def scatter_pieces(kernel: LoopKernel, schedule: ScatterSchedule) -> Sequence[Piece]:
    """One launch, and those before it that put the updates of every line in order."""
    if schedule.order is None:
        return [Piece(kernel, schedule)]
    (part,) = kernel.parts
    assert isinstance(part, Scatter)
    high = index_facts(kernel, ()).bounds(part.target.extent)[1]
    short = high is not None and high < 2**31
    index = Cast(part.index, i32) if short and part.index.dtype != i32 else part.index
    lines, source = lines_of_index(part), part.source
    shape = (product(a.extent for a in lines), source.extent)
    spaces = {"keys": TensorType(shape, index.dtype), "order": TensorType(shape, i32)}
    written = tuple(Param(type, True) for type in spaces.values())
    own, rank = len(kernel.params), Axis("_k", source.extent)
    to = row_major((*lines, rank))
    place = Index(symbol(source.name) if source.extent != 1 else 0, i32)
    stores = Store(own, to, index), Store(own + 1, to, place)
    first = replace(
        kernel,
        params=(*kernel.params, *written),
        parts=(Sort(lines, source, index, False, rank, stores),),
    )
    pieces = ordered_pieces(first, schedule.order, tuple(spaces))
    read = tuple(replace(p, is_written=False) for p in written)
    last = replace(kernel, params=(*kernel.params, *read))
    return [*pieces, Piece(last, schedule, tuple(spaces))]


def lines_of_index(part: Scatter) -> tuple[Axis, ...]:
    """The axes along which each line has indices of its own, as long as it has updates."""
    names = Numbering().needs(part.index)
    return tuple(a for a in part.lines if a.name in names)


class ScatterEmitter(Emitter):
    """One launch over tiles of the result."""

    part: Scatter

    def __init__(self, kernel: LoopKernel, schedule: ScatterSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.extents = part.axes
        self.helpers = combine_function(kernel, part.combine, part.dtype, "combined")
        self.shape = [schedule.rows, schedule.width]
        self.tiles = ceildiv(part.target.extent, schedule.rows)
        self.columns = ceildiv(product(a.extent for a in part.inner), schedule.width)

    def emit(self) -> tuple[Dim, ...]:
        part, body = self.part, self.body
        self.places()
        env = self.env({**self.lines_at, part.target.name: self.target}, self.shape, self.refs)
        start = env.to(env.value(part.start), part.start.dtype, part.dtype)
        body.line(f"acc = ({env.whole(start)}).to({value_type(carried(part.dtype))})")
        if part.updates != 0:  # else an index that is the same for all is looked up all the same
            self.go_through() if self.schedule.order is None else self.find()
        env.write(part.stores)
        return (self.tiles * self.columns * product(a.extent for a in part.outer),)

    def places(self) -> None:
        """The tile: a line before the target, places on it, lines behind it."""
        part, body, rows, width = self.part, self.body, self.schedule.rows, self.schedule.width
        tiles, columns = (self.scalars.dim(d).text for d in (self.tiles, self.columns))
        body.line("pid = tl.program_id(0)")
        behind = product(a.extent for a in part.inner)
        column = self.scalars.span(f"pid % {columns} * {width}", width, 1, behind)
        place = f"pid // {columns} % {tiles} * {rows}"
        self.target = self.scalars.span(place, rows, 0, part.target.extent)
        before = body.name(f"pid // ({columns} * {tiles})")
        self.lines_at = self.scalars.split(part.outer, AxisVar(before))
        self.lines_at |= self.scalars.split(part.inner, column)
        every = frozenset(a.name for a in part.axes)
        result = "acc" if part.dtype != bool_ else "(acc != 0)"
        self.refs = {RESULT: Val(result, every, TARGET | INNER)}

    def update(self, env: Env) -> None:
        """Combine the update with the places of the tile that it is put at."""
        part = self.part
        value = env.to(env.value(part.value), part.value.dtype, part.dtype)
        met = " & ".join(["met", *self.limits])
        self.body.line(f"acc = tl.where({met}, combined(acc, {value.text}), acc)")

    def go_through(self) -> None:
        """All updates, in order."""
        part, body = self.part, self.body
        extent = self.scalars.dim(part.source.extent).text
        with body.block(f"for at in range(0, {extent}):", [part.source.name]):
            given = self.given(AxisVar("at"))
            body.line(f"met = {given.value(part.index).text} == {self.target.text}")
            self.update(given)

    def find(self) -> None:
        """The first update of each place, and on from there."""
        part, body = self.part, self.body
        keys = len(self.kernel.params) - 2
        count = self.scalars.dim(part.source.extent).text
        env = self.given(AxisVar("place"))
        base = env.dim(row_major(lines_of_index(part)) * part.source.extent)
        high = self.facts.bounds(part.source.extent)[1]
        steps = 31 if high is None else high.bit_length()
        # a line's indices are its own, or all lines have the same
        shape = self.shape if base.dims >= INNER else [self.schedule.rows, 1]
        masks = [v.mask for n, v in env.axes.items() if v.mask and n in base.axes]
        masks = [m for m in (*masks, self.target.mask) if m]
        inside = " & ".join(dict.fromkeys(masks))
        target = body.name(f"{self.target.text} + tl.zeros({shape}, tl.int32)")
        inside = body.name(f"({inside or f'{target} >= 0'}) & ({target} >= 0)", prefix="in")
        self.lines(f"""
at = tl.zeros({shape}, tl.int32)
end = (at + {count}).to(tl.int32)""")
        with body.block(f"for step in range(0, {steps}):"):
            self.lines(f"""
still = {inside} & (at < end)
middle = (at + end) // 2
its = tl.load(p{keys} + {base.text} + middle, mask=still, other=0)
goes = still & (its < {target})
at = tl.where(goes, middle + 1, at)
end = tl.where(still & (goes == 0), middle, end)""")
        there = f"""
its = tl.load(p{keys} + {base.text} + at, mask=met & (at < {count}), other=-1)
met = met & (its == {target})
left = tl.max(tl.max(met.to(tl.int32), axis=1), axis=0)"""
        self.lines(f"met = {inside}{there}")
        with body.block("while left > 0:", [part.source.name]):
            body.line(f"place = tl.load(p{keys + 1} + {base.text} + at, mask=met, other=0)")
            dims = TARGET | (INNER if base.dims >= INNER else frozenset())
            self.update(self.given(AxisVar("place", dims, "met")))
            self.lines(f"at = at + 1{there}")

    def given(self, source: AxisVar) -> Env:
        """Elements of the updates at `source`."""
        part = self.part
        axes, self.limits = self.limited()
        extents = (*part.lines, part.source)
        return Env(self.body, self.kernel, extents, {**axes, part.source.name: source}, self.shape)

    def limited(self) -> tuple[dict[str, AxisVar], list[str]]:
        """Lines as variables, masked where there are no updates; and those masks."""
        found, limits = dict(self.lines_at), []
        for axis, short in zip((*self.part.outer, *self.part.inner), self.part.lines):
            if axis.extent == short.extent or axis.extent == 1:
                continue
            var = found[axis.name]
            if not var.dims:  # a mask is a tile
                wide = f"{var.text} + tl.zeros([1, {self.schedule.width}], tl.int32)"
                var = AxisVar(self.body.name(wide), INNER)
            limit = f"({var.text} < {self.scalars.dim(short.extent).text})"
            limits.append(limit)
            mask = limit if var.mask is None else f"{var.mask} & {limit}"
            found[axis.name] = replace(var, mask=self.body.name(mask, prefix="in"))
        return found, limits
