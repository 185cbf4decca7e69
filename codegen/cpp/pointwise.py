"""Pointwise parts: outer axes shared among threads, the last axis swept, or one that is longer."""

from ...ir.dim import product
from ...ir.indexing import coefficient_of
from ..elements import loads_of
from ..loops import Axis, LoopKernel, Pointwise
from . import dims
from .elements import Scope, decode
from .schedules import USUAL, RunSchedule
from .sweep import store_sink, sweep

SHORT = 16  # a last axis below this is swept only where something is read along it


def emit_pointwise(
    kernel: LoopKernel, part: Pointwise, name: str, schedule: RunSchedule = USUAL
) -> list[str]:
    """A function that computes the part."""
    block = schedule.block
    axes = tuple(a for a in part.axes if a.extent != 1)
    *outer, inner = axes or (Axis("unit", 1),)
    if outer and _is_turned(part, outer[-1], inner):
        outer[-1], inner = inner, outer[-1]
    is_whole = isinstance(inner.extent, int) and inner.extent <= block
    scope = Scope(kernel, (*part.axes, inner))
    count, extent = dims.text(product(a.extent for a in outer)), dims.text(inner.extent)
    with scope.function(name, part.axes):
        if is_whole:
            scope.write(f"const int64_t items = {count};")
        else:
            scope.write(f"const int64_t blocks = ({extent} + {block - 1}) / {block};")
            scope.write(f"const int64_t items = {count} * blocks;")
        with scope.shared("item", "items", scope.axes - {inner.name}):
            lo, hi = "0", extent
            if not is_whole:
                lo, hi = "lo", "hi"
                scope.write(f"const int64_t lo = item % blocks * {block};")
                scope.write(f"const int64_t hi = tw_lesser(lo + {block}, {extent});")
            scope.write(*decode(outer, "item" if is_whole else "item / blocks"))
            sweep(scope, inner.name, lo, hi, [store_sink(s) for s in part.stores])
    return scope.lines


def _is_turned(part: Pointwise, before: Axis, last: Axis) -> bool:
    """Whether the last axis is short, and what is read lies along the one before."""
    if not isinstance(last.extent, int) or last.extent >= SHORT:
        return False
    offsets = [load.offset for store in part.stores for load in loads_of(store.value)]
    return any(coefficient_of(at, before.name) == 1 for at in offsets) and not any(
        coefficient_of(at, last.name) == 1 for at in offsets
    )
