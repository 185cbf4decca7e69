"""Pointwise: tiles of rows, of the flattened iteration space, or across where reads cross writes.

Several parts share a launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ...ir.indexing import coefficient_of
from ..elements import loads_of
from ..loops import Axis, Pointwise
from ..templates.pointwise import crossing
from ..templates.template import power_of_2
from .elements import AxisVar, Env
from .launch import Emitter

LEAST_WIDTH = 32  # of a tile's rows, in elements: what a warp takes at once


@dataclass(frozen=True)
class _Tile:
    """A program's elements: `rows` of the outer axes times `width` of the inner ones, which it
    divides. What the outer axes decide is computed once a row: an index looked up, its check.

    `rows` is None where the inner axes, then all of them, are cut anywhere.
    """

    outer: Sequence[Axis]
    inner: Sequence[Axis]
    rows: int | None
    width: int

    @property
    def columns(self) -> Dim:
        """Tiles side by side."""
        return ceildiv(product(a.extent for a in self.inner), self.width)

    @property
    def count(self) -> Dim:
        """Tiles in all."""
        return ceildiv(product(a.extent for a in self.outer), self.rows or 1) * self.columns

    def place(self, scalars: Env, at: str) -> tuple[dict[str, AxisVar], list[int]]:
        """What stands for the axes in tile number `at`, and the tile's shape."""
        body, width = scalars.body, self.width
        if self.rows is None:
            index = body.name(f"{at} * {width} + tl.arange(0, {width})", prefix="at")
            mask = scalars.below(index, product(a.extent for a in self.inner), width)
            return scalars.split(self.inner, AxisVar(index, frozenset([0]), mask)), [width]
        columns = scalars.dim(self.columns).text
        row = f"{at} // {columns} * {self.rows} + tl.arange(0, {self.rows})[:, None]"
        column = f"{at} % {columns} * {width} + tl.arange(0, {width})[None, :]"
        row, column = body.name(row, prefix="row"), body.name(column, prefix="at")
        mask = scalars.below(row, product(a.extent for a in self.outer), self.rows)
        axes = scalars.split(self.outer, AxisVar(row, frozenset([0]), mask))
        axes |= scalars.split(self.inner, AxisVar(column, frozenset([1])))
        return axes, [self.rows, width]


@dataclass(frozen=True)
class _Crossed:
    """A program's elements: a rectangle of the axis `row` and the flattened axes `columns`.

    Tiles follow each other along columns, then along the axes `fast`, then along rows. Where
    neighbours are read along rows, Triton turns what is read round in shared memory.
    """

    outer: Sequence[Axis]
    row: Axis
    fast: Sequence[Axis]
    columns: Sequence[Axis]
    rows: int
    width: int

    @property
    def tiles(self) -> tuple[Dim, Dim, Dim]:
        """Of one point of the outer axes: along rows, along fast axes, and along columns."""
        fast, columns = (product(a.extent for a in axes) for axes in (self.fast, self.columns))
        return ceildiv(self.row.extent, self.rows), fast, ceildiv(columns, self.width)

    @property
    def count(self) -> Dim:
        """Tiles in all."""
        return product((*(a.extent for a in self.outer), *self.tiles))

    def place(self, scalars: Env, at: str) -> tuple[dict[str, AxisVar], list[int]]:
        """What stands for the axes in tile number `at`, and the tile's shape."""
        body, places = scalars.body, []
        for count in reversed(self.tiles):
            text = scalars.dim(count).text
            places.append(f"{at} % {text}" if count != 1 else "0")
            at = body.name(f"{at} // {text}", prefix="at") if count != 1 else at
        column, fast, row = places
        axes = scalars.split(self.outer, AxisVar(at))
        axes |= scalars.split(self.fast, AxisVar(body.name(fast, prefix="at")))
        start = f"{row} * {self.rows}"
        axes[self.row.name] = scalars.span(start, self.rows, 0, self.row.extent, "row")
        extent = product(a.extent for a in self.columns)
        span = scalars.span(f"{column} * {self.width}", self.width, 1, extent, "at")
        return axes | scalars.split(self.columns, span), [self.rows, self.width]


def _tile(part: Pointwise, block: int, scalars: Env) -> _Tile | _Crossed:
    """The widest tile of `block` elements; of equally wide ones the one with fewest inner axes.

    Where reads cross writes, the squarest.
    """
    axes, facts = part.axes, scalars.facts
    row = crossing(part, facts)
    if row is not None:
        *outer, column = (a for a in axes if a is not row)
        side = 1 << (block.bit_length() - 1) // 2
        width = min(side, power_of_2(facts.hint(column.extent)))
        rows = min(block // width, power_of_2(facts.hint(row.extent)))
        return _Crossed(outer, row, (), [column], rows, block // rows)
    if (found := _in_order_of_reads(part, block, facts)) is not None:
        return found
    best = _Tile((), axes, None, block)
    widest = LEAST_WIDTH - 1
    for first in range(len(axes) - 1, 0, -1):
        width = gcd(facts.multiple(product(a.extent for a in axes[first:])), block)
        if width > widest:
            best, widest = _Tile(axes[:first], axes[first:], block // width, width), width
    return best


def _in_order_of_reads(part: Pointwise, block: int, facts: Facts) -> _Crossed | None:
    """Tiles of runs that lie in another order where they are read, which they follow each other in.

    None where all lies in one order. Where heads are put in front of tokens, one head after the
    other of the same tokens.
    """
    offsets = [load.offset for load in loads_of(part.stores)]
    steps = {a.name: [coefficient_of(o, a.name) for o in offsets] for a in part.axes}

    def is_faster(axis: Axis, row: Axis) -> bool:
        pairs = zip(steps[axis.name], steps[row.name])
        return any(isinstance(a, int) and isinstance(b, int) and 0 < a < b for a, b in pairs)

    for at in range(len(part.axes) - 2, 0, -1):
        *others, row = part.axes[: at + 1]
        columns = part.axes[at + 1 :]
        width = gcd(facts.multiple(product(a.extent for a in columns)), block)
        fast = [a for a in others if is_faster(a, row)]
        if width >= LEAST_WIDTH and fast:
            rows = min(block // width, power_of_2(facts.hint(row.extent)))
            slow = [a for a in others if a not in fast]
            return _Crossed(slow, row, fast, columns, rows, width)
    return None


class PointwiseEmitter(Emitter):
    """One launch; each part has a range of program ids."""

    def emit(self) -> tuple[Dim, ...]:
        body, scalars, parts = self.body, self.scalars, self.kernel.parts
        body.line("pid = tl.program_id(0)")
        first: Dim = 0
        for number, part in enumerate(parts):
            assert isinstance(part, Pointwise)
            tile = _tile(part, self.schedule.block, scalars)
            if len(parts) == 1:
                _part(scalars, part, tile, "pid")
                return (tile.count,)
            low, high = scalars.dim(first).text, scalars.dim(first + tile.count).text
            test = f"if pid < {high}:" if number == 0 else f"if (pid >= {low}) & (pid < {high}):"
            with body.block(test, is_conditional=True):
                at = "pid" if number == 0 else body.name(f"pid - {low}", prefix="pid")
                _part(scalars, part, tile, at)
            first = first + tile.count
        return (first,)


def _part(scalars: Env, part: Pointwise, tile: _Tile | _Crossed, at: str) -> None:
    # with what lies past the ends in the last tiles
    total = product(a.extent for a in part.axes) + tile.width * (tile.rows or 1)
    if not scalars.facts.fits_32_bits(total):
        at = f"{at}.to(tl.int64)"
    axes, shape = tile.place(scalars, at)
    if not part.axes:  # a single element
        shape = []
    env = Env(scalars.body, scalars.kernel, part.axes, axes, shape)
    env.write(part.stores)
