"""Pointwise: tiles of rows, or of the flattened iteration space; several parts share a launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ..elements import index_facts
from ..loops import Axis, LoopKernel, Pointwise
from ..templates.pointwise import PointwiseSchedule
from .body import Body, Context, Emitted, finish
from .elements import AxisVar, Env

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
    facts = index_facts(kernel, ())
    first: Dim = 0
    for number, part in enumerate(kernel.parts):
        assert isinstance(part, Pointwise)
        tile = _tile(part.axes, schedule.block, facts)
        if len(kernel.parts) == 1:
            _part(kernel, part, body, tile, "pid")
            first = tile.count
            break
        env = Env(body, kernel, (), {}, "", 0)
        low, high = env.dim(first).text, env.dim(first + tile.count).text
        test = f"if pid < {high}:" if number == 0 else f"if (pid >= {low}) & (pid < {high}):"
        with body.block(test, is_conditional=True):
            at = "pid" if number == 0 else body.name(f"pid - {low}", prefix="pid")
            _part(kernel, part, body, tile, at)
        first = first + tile.count
    return finish(kernel, body, context, grid=(first,), num_warps=schedule.num_warps)


def _part(kernel: LoopKernel, part: Pointwise, body: Body, tile: _Tile, at: str) -> None:
    total = product(a.extent for a in part.axes)
    facts = index_facts(kernel, ())
    if not facts.fits_32_bits(total + tile.width * (tile.rows or 1)):
        at = f"{at}.to(tl.int64)"
    scalars = Env(body, kernel, (), {}, "", 0)
    if tile.rows is None:
        index = body.name(f"{at} * {tile.width} + tl.arange(0, {tile.width})", prefix="at")
        mask = scalars.below(index, total, tile.width)
        axes = split_index(body, kernel, facts, tile.inner, index, frozenset([0]), mask)
        shape, rank = f"[{tile.width}]", 1
    else:
        columns = scalars.dim(tile.columns).text
        row = f"{at} // {columns} * {tile.rows} + tl.arange(0, {tile.rows})[:, None]"
        column = f"{at} % {columns} * {tile.width} + tl.arange(0, {tile.width})[None, :]"
        row, column = body.name(row, prefix="row"), body.name(column, prefix="at")
        mask = scalars.below(row, product(a.extent for a in tile.outer), tile.rows)
        axes = split_index(body, kernel, facts, tile.outer, row, frozenset([0]), mask)
        axes |= split_index(body, kernel, facts, tile.inner, column, frozenset([1]), None)
        shape, rank = f"[{tile.rows}, {tile.width}]", 2
    if not part.axes:  # a single element
        shape, rank = "", 0
    env = Env(body, kernel, part.axes, axes, shape, rank)
    for store in part.stores:
        env.store(store)


def split_index(
    body: Body,
    kernel: LoopKernel,
    facts: Facts,
    axes: Sequence[Axis],
    index: str,
    dims: frozenset[int],
    mask: str | None,
) -> dict[str, AxisVar]:
    """Variables for `axes` from a flat index over them, the last axis fastest."""
    result = {}
    rest = index
    scalars = Env(body, kernel, (), {}, "", 0)
    for axis in reversed(axes[1:]):
        extent = scalars.dim(axis.extent).text
        result[axis.name] = AxisVar(body.name(f"{rest} % {extent}", prefix="at"), dims, mask)
        rest = body.name(f"{rest} // {extent}", prefix="at")
    if axes:
        result[axes[0].name] = AxisVar(rest, dims, mask)
    return result
