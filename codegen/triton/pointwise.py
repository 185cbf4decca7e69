"""Pointwise: tiles of rows, or of the flattened iteration space; several parts share a launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ..loops import Axis, LoopKernel, Pointwise
from ..templates.pointwise import PointwiseSchedule
from .body import Body, Context, Emitted, finish
from .elements import Env

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


def emit_pointwise(kernel: LoopKernel, schedule: PointwiseSchedule, context: Context) -> Emitted:
    """One launch; each part has a range of program ids."""
    body = Body.waiting(context)
    body.line("pid = tl.program_id(0)")
    scalars = Env(body, kernel, (), {}, "", 0)
    first: Dim = 0
    for number, part in enumerate(kernel.parts):
        assert isinstance(part, Pointwise)
        tile = _tile(part.axes, schedule.block, scalars.facts)
        if len(kernel.parts) == 1:
            _part(scalars, part, tile, "pid")
            first = tile.count
            break
        low, high = scalars.dim(first).text, scalars.dim(first + tile.count).text
        test = f"if pid < {high}:" if number == 0 else f"if (pid >= {low}) & (pid < {high}):"
        with body.block(test, is_conditional=True):
            at = "pid" if number == 0 else body.name(f"pid - {low}", prefix="pid")
            _part(scalars, part, tile, at)
        first = first + tile.count
    return finish(kernel, body, context, grid=(first,), num_warps=schedule.num_warps)


def _part(scalars: Env, part: Pointwise, tile: _Tile, at: str) -> None:
    body, total = scalars.body, product(a.extent for a in part.axes)
    if not scalars.facts.fits_32_bits(total + tile.width * (tile.rows or 1)):
        at = f"{at}.to(tl.int64)"
    if tile.rows is None:
        index = body.name(f"{at} * {tile.width} + tl.arange(0, {tile.width})", prefix="at")
        mask = scalars.below(index, total, tile.width)
        axes = scalars.split(tile.inner, index, frozenset([0]), mask)
        shape, rank = f"[{tile.width}]", 1
    else:
        columns = scalars.dim(tile.columns).text
        row = f"{at} // {columns} * {tile.rows} + tl.arange(0, {tile.rows})[:, None]"
        column = f"{at} % {columns} * {tile.width} + tl.arange(0, {tile.width})[None, :]"
        row, column = body.name(row, prefix="row"), body.name(column, prefix="at")
        mask = scalars.below(row, product(a.extent for a in tile.outer), tile.rows)
        axes = scalars.split(tile.outer, row, frozenset([0]), mask)
        axes |= scalars.split(tile.inner, column, frozenset([1]))
        shape, rank = f"[{tile.rows}, {tile.width}]", 2
    if not part.axes:  # a single element
        shape, rank = "", 0
    env = Env(body, scalars.kernel, part.axes, axes, shape, rank)
    for store in part.stores:
        env.store(store)
