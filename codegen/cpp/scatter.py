"""Scatter parts: the result's start, the updates, the stores, with a barrier after each.

Threads share out the places that are written: the lines before the axis, or the places of the axis
where those are few. Each goes through the updates in order and makes those that are its own.
"""

from contextlib import ExitStack
from dataclasses import replace

from ...ir.dim import product
from ...ir.types import TensorType
from ..elements import substituted
from ..loops import Load, LoopKernel, Param, Pointwise, Ref, Store, row_major
from ..templates.scatter import RESULT, Scatter
from . import dims
from .combine import Combined, combined
from .elements import Scope, decode, value_type
from .pointwise import emit_pointwise
from .scalars import NARROW, convert


def emit_scatter(kernel: LoopKernel, part: Scatter, name: str) -> list[str]:
    """Functions of the three steps, and one that calls them."""
    in_place = _in_place(kernel, part)
    own = len(kernel.params) if in_place is None else in_place
    wide = kernel
    if in_place is None:  # the result before its stores lies in the team's scratch
        type = TensorType(tuple(a.extent for a in part.axes), part.dtype)
        wide = replace(kernel, params=(*kernel.params, Param(type, True)))
    place = row_major(part.axes)
    by = combined(kernel, part.combine, part.dtype, name)
    steps = {
        "start": emit_pointwise(
            wide, Pointwise(part.axes, (Store(own, place, part.start),)), f"{name}_start"
        ),
    }
    if part.updates != 0:
        steps["apply"] = _apply(wide, part, by, own, f"{name}_apply")
    if in_place is None:
        result = {RESULT: Load(own, place, part.dtype)}
        stores = tuple(replace(s, value=substituted(s.value, refs=result)) for s in part.stores)
        steps["store"] = emit_pointwise(wide, Pointwise(part.axes, stores), f"{name}_store")
    count = len(kernel.params)
    return [
        *by.lines,
        *(line for lines in steps.values() for line in (*lines, "")),
        f"static void {name}(TW_ARGS) {{",
        f"    void* all[{count + 1}];",
        f"    for (int i = 0; i < {count}; ++i) all[i] = p[i];",
        f"    all[{count}] = team->shared;",
        *(
            line
            for step in steps
            for line in (f"    {name}_{step}(all, d, team);", "    tw_barrier(team);")
        ),
        "}",
    ]


def scatter_scratch(kernel: LoopKernel, part: Scatter, name: str) -> list[str]:
    """The result, where it is not made in place."""
    if _in_place(kernel, part) is not None:
        return []
    size = dims.text(product(a.extent for a in part.axes) * part.dtype.nbytes)
    return [f"need[1] = tw_greater(need[1], {size});"]


def _in_place(kernel: LoopKernel, part: Scatter) -> int | None:
    """The parameter that can hold the result while it is made: nothing else is stored."""
    if len(part.stores) != 1 or not isinstance(part.stores[0].value, Ref):
        return None
    (store,) = part.stores
    stored = kernel.params[store.param].type.dtype
    is_same = stored == part.dtype and stored.name not in NARROW
    return store.param if is_same and store.offset == row_major(part.axes) else None


def _apply(kernel: LoopKernel, part: Scatter, by: Combined, own: int, name: str) -> list[str]:
    """The updates: a loop over lines before, places of the source, lines after."""
    axes = (*part.outer, part.source, *part.inner)
    scope = Scope(kernel, axes)
    outer = tuple(line for a, line in zip(part.outer, part.lines) if a.extent != 1)
    inner = zip(part.inner, part.lines[len(part.outer) :])
    loops = [line for a, line in inner if a.extent != 1]
    target = dims.name(part.target.name)
    per_line = not scope.needs(part.index).isdisjoint(a.name for a in part.inner)

    def choose() -> None:  # the rest of the loop's turn is skipped where the place is another's
        scope.write(f"const int64_t {target} = (int64_t){scope.emit(part.index)};")
        scope.write(f"if ({target} < lo || {target} >= hi) continue;")

    with scope.function(name, axes), ExitStack() as nest:
        scope.write(
            f"const int64_t lines = {dims.text(product(a.extent for a in outer))};",
            f"const int64_t places = {dims.text(part.target.extent)};",
            "const bool by_line = lines >= team->nthreads;",
            "const int64_t first = by_line ? tw_cut(lines, team->tid, team->nthreads) : 0;",
            "const int64_t last = by_line ? tw_cut(lines, team->tid + 1, team->nthreads) : lines;",
            "const int64_t lo = by_line ? 0 : tw_cut(places, team->tid, team->nthreads);",
            "const int64_t hi = by_line ? places : tw_cut(places, team->tid + 1, team->nthreads);",
        )
        head = "for (int64_t item = first; item < last; ++item) {"
        nest.enter_context(scope.block(head, known=(a.name for a in part.outer)))
        scope.write(*decode(outer, "item"))
        nest.enter_context(scope.loop(part.source.name, "0", dims.text(part.source.extent)))
        if not per_line:
            choose()
        for axis in loops:
            # places of one update are different places
            simd = ["#pragma omp simd"] if axis is loops[-1] and not per_line else []
            extent, hoists = dims.text(axis.extent), axis is not loops[0]
            nest.enter_context(scope.loop(axis.name, "0", extent, *simd, hoists=hoists))
        if per_line:
            choose()
        value = convert(scope.emit(part.value), part.value.dtype, part.dtype)
        place = dims.text(row_major(part.axes))
        scope.write(f"{value_type(part.dtype)}* const to = p{own} + {place};")
        scope.write(f"*to = {by.struct}::combine(*to, {value});")
    return scope.lines
