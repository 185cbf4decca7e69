"""Axes that every index of a part takes together become one: fewer divisions, longer runs.

[a, b] -> [a * b] where each index has a and b as a * extent(b) + b, or has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir.dim import Dim, Expr, symbols_of
from ..ir.indexing import coefficient_of
from .elements import substituted, substituted_store, walk
from .loops import Axis, LoopKernel, Part, Pointwise, Reduce


def with_merged_axes(kernel: LoopKernel) -> LoopKernel:
    """The kernel with the axes of its pointwise parts, and the rows of its reductions, merged."""
    parts = tuple(map(_merged, kernel.parts))
    return kernel if parts == kernel.parts else replace(kernel, parts=parts)


def _merged(part: Part) -> Part:
    match part:
        case Pointwise(axes, stores):
            axes, to = _runs(axes, stores)
            return Pointwise(axes, tuple(substituted_store(s, to) for s in stores)) if to else part
        case Reduce(rows, axis, phases, row_stores, stores):
            rows, to = _runs(rows, (phases, row_stores, stores))
            if not to:
                return part
            made = tuple(
                tuple(replace(r, value=substituted(r.value, to)) for r in phase) for phase in phases
            )
            by_row, along = (
                tuple(substituted_store(s, to) for s in some) for some in (row_stores, stores)
            )
            return Reduce(rows, axis, made, by_row, along)
    return part


def _runs(axes: Sequence[Axis], items: tuple) -> tuple[tuple[Axis, ...], Mapping[str, Dim]]:
    """The axes that are left, and 0 for each that the one behind it has taken in."""
    names = {a.name for a in axes}
    dims = {d for d in walk(items) if isinstance(d, Expr) and not names.isdisjoint(symbols_of(d))}
    kept: list[Axis] = []
    taken: dict[str, Dim] = {}
    for axis in reversed(axes):
        if kept and all(_goes_on(d, axis, kept[-1]) for d in dims):
            taken[axis.name] = 0
            kept[-1] = replace(kept[-1], extent=axis.extent * kept[-1].extent)
        else:
            kept.append(axis)
    return tuple(reversed(kept)), taken


def _goes_on(dim: Dim, outer: Axis, inner: Axis) -> bool:
    """Whether an index steps along `outer` as it would along a longer `inner`."""
    step, wide = (coefficient_of(dim, a.name) for a in (inner, outer))
    return step is not None and wide is not None and wide == step * inner.extent
