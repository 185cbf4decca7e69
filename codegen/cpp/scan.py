"""Scan parts: a row is swept chunk by chunk, what has come so far carried along.

Fewer rows than threads: the chunks of all rows are taken in order, and what has come so far is
handed from chunk to chunk. The same combinations either way. Rows that lie side by side are scanned
side by side.
"""

from ...ir.dim import product
from ..loops import LoopKernel
from ..templates.scan import RESULT, Scan
from . import dims
from .combine import Combined, combined
from .elements import Scope, decode, value_type
from .scalars import constant
from .sweep import Sink, buffer_sink, store_sink, sweep

CHUNK = 4096  # elements that are scanned by themselves: decides bits, so not to be tuned lightly
LANES = 128  # neighbouring rows that are scanned side by side
BLOCK = 64  # places of theirs that are combined by themselves: decides bits as well


def emit_scan(kernel: LoopKernel, part: Scan, name: str) -> list[str]:
    """A function that computes the part."""
    by = combined(kernel, part.combine, part.dtype, name)
    start = constant(part.combine.identity_of(part.dtype), part.dtype)
    scope = Scope(kernel, (*part.rows, part.axis))
    with scope.function(name):
        scope.write(f"const {value_type(part.dtype)} start = {start};")
        (_across if part.is_across else _along)(scope, part, by)
    return [*by.lines, *scope.lines]


def _along(scope: Scope, part: Scan, by: Combined) -> None:
    """Row by row, or the chunks of all rows in order."""
    kind = value_type(part.dtype)
    scan = "tw_scan_wide" if by.on_vectors else "tw_scan_blocks"
    axis, extent = dims.name(part.axis.name), dims.text(part.axis.extent)
    scope.write(
        f"alignas(64) {kind} buffer[{CHUNK}];",
        f"const int64_t chunks = ({extent} + {CHUNK - 1}) / {CHUNK};",
        f"const int64_t rows = {dims.text(product(a.extent for a in part.rows))};",
        "// fewer rows than threads: they share out the chunks of all rows",
        "const bool wide = rows < team->nthreads && chunks > 1;",
        f"{kind} own = start;",
        f"{kind}* const carried = wide ? ({kind}*)team->shared : &own;",
        "int64_t item = wide ? tw_take(team, 0)",
        "                    : tw_cut(rows, team->tid, team->nthreads) * chunks;",
        "const int64_t last = wide ? rows * chunks",
        "                          : tw_cut(rows, team->tid + 1, team->nthreads) * chunks;",
    )
    head = "for (; item < last; item = wide ? tw_take(team, 0) : item + 1) {"
    with scope.block(head, known=(a.name for a in part.rows)):
        scope.write(
            *decode(part.rows, "item / chunks"),
            f"const int64_t lo = item % chunks * {CHUNK};",
            f"const int64_t hi = tw_lesser(lo + {CHUNK}, {extent});",
        )
        sweep(scope, part.axis.name, "lo", "hi", [_fill(part, f"buffer[{axis} - lo]")])
        scope.write(
            f"const {kind} total = {scan}<{by.struct}>(buffer, hi - lo, start);",
            "if (wide) tw_await_turn(team, 1, item);",
            f"const {kind} before = item % chunks ? *carried : start;",
            f"*carried = {by.struct}::combine(before, total);",
            "if (wide) tw_end_turn(team, 1, item);",
        )
        result = f"{by.struct}::combine(before, buffer[{axis} - lo])"
        _sweep_stores(scope, part, part.axis.name, result)


def _across(scope: Scope, part: Scan, by: Combined) -> None:
    """Neighbouring rows side by side, place after place."""
    kind = value_type(part.dtype)
    *outer, inner = part.rows
    axis, at = dims.name(part.axis.name), f"{dims.name(inner.name)} - lo"
    scope.write(
        f"alignas(64) {kind} before[{LANES}], block[{LANES}], value[{LANES}];",
        f"const int64_t blocks = ({dims.text(inner.extent)} + {LANES - 1}) / {LANES};",
        f"const int64_t items = {dims.text(product(a.extent for a in outer))} * blocks;",
    )
    with scope.shared("item", "items", (a.name for a in outer)):
        scope.write(
            *decode(outer, "item / blocks"),
            f"const int64_t lo = item % blocks * {LANES};",
            f"const int64_t hi = tw_lesser(lo + {LANES}, {dims.text(inner.extent)});",
            "for (int64_t i = 0; i < hi - lo; ++i) before[i] = block[i] = start;",
        )
        with scope.loop(part.axis.name, "0", dims.text(part.axis.extent)):
            scope.write(
                f"if ({axis} % {BLOCK} == 0)",
                "    for (int64_t i = 0; i < hi - lo; ++i) {",
                f"        before[i] = {by.struct}::combine(before[i], block[i]);",
                "        block[i] = start;",
                "    }",
            )
            sweep(scope, inner.name, "lo", "hi", [_fill(part, f"value[{at}]")])
            scope.write(
                "for (int64_t i = 0; i < hi - lo; ++i)",
                f"    block[i] = {by.struct}::combine(block[i], value[i]);",
            )
            result = f"{by.struct}::combine(before[{at}], block[{at}])"
            _sweep_stores(scope, part, inner.name, result)


def _sweep_stores(scope: Scope, part: Scan, axis: str, result: str) -> None:
    scope.refs[RESULT] = (result, frozenset((axis,)))
    sweep(scope, axis, "lo", "hi", [store_sink(s) for s in part.stores])


def _fill(part: Scan, place: str) -> Sink:
    return buffer_sink(place, part.value, part.dtype)
