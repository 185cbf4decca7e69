"""Pointwise: tiles of rows, or of the flattened iteration space; several parts share a launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ..loops import Axis, Pointwise
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


def _tile(axes: Sequence[Axis], block: int, facts: Facts) -> _Tile:
    """The widest tile of `block` elements; of equally wide ones the one with fewest inner axes."""
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
            tile = _tile(part.axes, self.schedule.block, self.facts)
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


def _part(scalars: Env, part: Pointwise, tile: _Tile, at: str) -> None:
    body, total = scalars.body, product(a.extent for a in part.axes)
    if not scalars.facts.fits_32_bits(total + tile.width * (tile.rows or 1)):
        at = f"{at}.to(tl.int64)"
    if tile.rows is None:
        index = body.name(f"{at} * {tile.width} + tl.arange(0, {tile.width})", prefix="at")
        mask = scalars.below(index, total, tile.width)
        axes = scalars.split(tile.inner, AxisVar(index, frozenset([0]), mask))
        shape = [tile.width]
    else:
        columns = scalars.dim(tile.columns).text
        row = f"{at} // {columns} * {tile.rows} + tl.arange(0, {tile.rows})[:, None]"
        column = f"{at} % {columns} * {tile.width} + tl.arange(0, {tile.width})[None, :]"
        row, column = body.name(row, prefix="row"), body.name(column, prefix="at")
        mask = scalars.below(row, product(a.extent for a in tile.outer), tile.rows)
        axes = scalars.split(tile.outer, AxisVar(row, frozenset([0]), mask))
        axes |= scalars.split(tile.inner, AxisVar(column, frozenset([1])))
        shape = [tile.rows, tile.width]
    if not part.axes:  # a single element
        shape = []
    env = Env(body, scalars.kernel, part.axes, axes, shape)
    env.write(part.stores)
