"""Pointwise: tiles of the flattened iteration space; several parts share a launch."""

from collections.abc import Sequence

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ..loops import Axis, LoopKernel, Pointwise
from .body import Body, Context, Emitted, finish
from .elements import AxisVar, Env, axis_facts
from .names import fits_32_bits
from .schedule import PointwiseSchedule


def emit_pointwise(kernel: LoopKernel, schedule: PointwiseSchedule, context: Context) -> Emitted:
    """One launch; each part has a range of program ids."""
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    body.line("pid = tl.program_id(0)")
    first: Dim = 0
    for number, part in enumerate(kernel.parts):
        assert isinstance(part, Pointwise)
        count = ceildiv(product(a.extent for a in part.axes), schedule.block)
        if len(kernel.parts) == 1:
            _part(kernel, part, body, schedule.block, "pid")
            first = count
            break
        env = Env(body, kernel, (), {}, "", 0)
        low, high = env.dim(first).text, env.dim(first + count).text
        test = f"if pid < {high}:" if number == 0 else f"if (pid >= {low}) & (pid < {high}):"
        with body.block(test, is_conditional=True):
            at = "pid" if number == 0 else body.name(f"pid - {low}", prefix="pid")
            _part(kernel, part, body, schedule.block, at)
        first = first + count
    return finish(kernel, body, context, grid=(first,), num_warps=schedule.num_warps)


def _part(kernel: LoopKernel, part: Pointwise, body: Body, block: int, at: str) -> None:
    total = product(a.extent for a in part.axes)
    facts = axis_facts(kernel, ())
    is_wide = not fits_32_bits(total + block, facts)
    start = f"{at}.to(tl.int64) * {block}" if is_wide else f"{at} * {block}"
    scalars = Env(body, kernel, (), {}, "", 0)
    outer, inner = _tile_inside(part.axes, block, facts)
    axes = {}
    if outer:
        # rows that a tile never crosses: which one it is, and what that decides, is a scalar
        width = scalars.dim(product(a.extent for a in inner)).text
        row = body.name(f"{start} // {width}", prefix="row")
        axes = split_index(body, kernel, facts, outer, row, frozenset(), None)
        start = f"{start} % {width}"
    index = body.name(f"{start} + tl.arange(0, {block})", prefix="at")
    mask = None
    if not facts.proved_multiple(total, block):
        mask = body.name(f"{index} < {scalars.dim(total).text}", prefix="in")
    axes |= split_index(body, kernel, facts, inner, index, frozenset([0]), mask)
    if not part.axes:  # a single element
        axes = {}
        env = Env(body, kernel, (), axes, "", 0)
    else:
        env = Env(body, kernel, part.axes, axes, f"[{block}]", 1)
    for store in part.stores:
        env.store(store)


def _tile_inside(
    axes: Sequence[Axis], block: int, facts: Facts
) -> tuple[Sequence[Axis], Sequence[Axis]]:
    """(outer, inner) axes, where whole tiles fill the inner ones; outer is empty where none do."""
    for first in range(len(axes) - 1, 0, -1):
        if facts.proved_multiple(product(a.extent for a in axes[first:]), block):
            return axes[:first], axes[first:]
    return (), axes


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
