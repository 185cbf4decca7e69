"""Pointwise parts: outer axes shared among threads, the last axis swept."""

from collections.abc import Iterable

from ...ir.dim import product
from ..loops import Axis, LoopKernel, Pointwise
from . import dims
from .elements import Scope, pointer_type
from .sweep import store_sink, sweep

BLOCK = 4096  # elements of the last axis that one thread takes at a time


def emit_pointwise(kernel: LoopKernel, part: Pointwise, name: str) -> list[str]:
    """A function that computes the part."""
    axes = tuple(a for a in part.axes if a.extent != 1)
    inner = axes[-1] if axes else Axis("unit", 1)
    outer = axes[:-1]
    is_whole = isinstance(inner.extent, int) and inner.extent <= BLOCK
    scope = Scope(kernel, frozenset(a.name for a in part.axes) | {inner.name}, extents=part.axes)
    lines = [f"static void {name}(TW_ARGS) {{"]
    lines += ["    " + line for line in declarations(kernel)]
    lines += ["    " + line for line in units(part.axes)]
    count = dims.text(product(a.extent for a in outer))
    extent = dims.text(inner.extent)
    if is_whole:
        lines.append(f"    const int64_t items = {count};")
    else:
        lines.append(f"    const int64_t blocks = ({extent} + {BLOCK - 1}) / {BLOCK};")
        lines.append(f"    const int64_t items = {count} * blocks;")
    lines += [
        "    const int64_t first = tw_cut(items, team->tid, team->nthreads);",
        "    const int64_t last = tw_cut(items, team->tid + 1, team->nthreads);",
        "    for (int64_t item = first; item < last; ++item) {",
    ]
    scope.push(frozenset(a.name for a in part.axes) - {inner.name}, hoists=False)
    lo, hi = "0", extent
    if not is_whole:
        scope.write(f"const int64_t lo = item % blocks * {BLOCK};")
        scope.write(f"const int64_t hi = tw_lesser(lo + {BLOCK}, {extent});")
        lo, hi = "lo", "hi"
    scope.write(*decode(outer, "item" if is_whole else "item / blocks"))
    sweep(scope, inner.name, lo, hi, [store_sink(s) for s in part.stores])
    return [*lines, *("        " + line for line in scope.pop()), "    }", "}"]


def decode(axes: tuple[Axis, ...], flat: str) -> list[str]:
    """Axis variables from a flat index over their extents."""
    if not axes:
        return []
    if len(axes) == 1:
        return [f"const int64_t {dims.name(axes[0].name)} = {flat};"]
    lines = [f"int64_t rest = {flat};"]
    for axis in reversed(axes[1:]):
        extent = dims.text(axis.extent)
        lines.append(f"const int64_t {dims.name(axis.name)} = rest % {extent};")
        lines.append(f"rest /= {extent};")
    lines.append(f"const int64_t {dims.name(axes[0].name)} = rest;")
    return lines


def units(axes: Iterable[Axis]) -> list[str]:
    """The variables of axes of extent 1, over which nothing loops."""
    return [f"const int64_t {dims.name(a.name)} = 0;" for a in axes if a.extent == 1]


def declarations(kernel: LoopKernel) -> list[str]:
    """Buffers and dims as typed variables."""
    types = [pointer_type(param) for param in kernel.params]
    lines = [f"{type} const p{i} = ({type})p[{i}];" for i, type in enumerate(types)]
    return [*lines, *dims.given(kernel.symbols)]
