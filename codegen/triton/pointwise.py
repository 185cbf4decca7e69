"""Pointwise: tiles of rows, of the flattened iteration space, or across where reads cross writes.

Several parts share a launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.dim import Dim, ceildiv, product
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
    """A program's elements: a rectangle of the axes `row`, along which neighbours are read, and
    `column`, along which they are written. Triton turns what is read round in shared memory.
    """

    outer: Sequence[Axis]
    row: Axis
    column: Axis
    rows: int
    width: int

    @property
    def tiles(self) -> tuple[Dim, Dim]:
        """Of one point of the outer axes: along rows, and along columns."""
        return ceildiv(self.row.extent, self.rows), ceildiv(self.column.extent, self.width)

    @property
    def count(self) -> Dim:
        """Tiles in all."""
        return product((*(a.extent for a in self.outer), *self.tiles))

    def place(self, scalars: Env, at: str) -> tuple[dict[str, AxisVar], list[int]]:
        """What stands for the axes in tile number `at`, and the tile's shape."""
        body = scalars.body
        tall, wide = (scalars.dim(count).text for count in self.tiles)
        rest = body.name(f"{at} // {wide}", prefix="at")
        row, column = f"{rest} % {tall} * {self.rows}", f"{at} % {wide} * {self.width}"
        outer = AxisVar(body.name(f"{rest} // {tall}", prefix="at"))
        axes = scalars.split(self.outer, outer)
        axes[self.row.name] = scalars.span(row, self.rows, 0, self.row.extent, "row")
        axes[self.column.name] = scalars.span(column, self.width, 1, self.column.extent, "at")
        return axes, [self.rows, self.width]


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
        return _Crossed(outer, row, column, rows, block // rows)
    best = _Tile((), axes, None, block)
    widest = LEAST_WIDTH - 1
    for first in range(len(axes) - 1, 0, -1):
        width = gcd(facts.multiple(product(a.extent for a in axes[first:])), block)
        if width > widest:
            best, widest = _Tile(axes[:first], axes[first:], block // width, width), width
    return best


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
