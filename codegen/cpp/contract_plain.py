"""Contractions with f64 or integer sums: for each row and column, one sum after another."""

from ...ir.dim import product
from ..loops import Contract, LoopKernel, accumulator_of
from . import dims
from .elements import Scope, value_type
from .pointwise import declarations, decode, units
from .reduce import combines, sweep_row
from .scalars import convert
from .sweep import store_sink, sweep

_COLUMNS = 64  # columns of one row that one thread takes at a time


def emit_plain(kernel: LoopKernel, part: Contract, name: str) -> list[str]:
    """A function that computes the part."""
    dtype = accumulator_of(part.x_dtype)
    type = value_type(dtype)
    rows = tuple(a for a in (*part.batch, part.m) if a.extent != 1)
    outer = frozenset(a.name for a in (*part.batch, part.m))
    n, k = part.n.name, part.k.name
    refs = {f"acc{i}": (f"acc{i}[{dims.name(n)} - n0]", outer | {n}) for i in range(len(part.ws))}
    scope = Scope(kernel, outer | {n, k}, refs, extents=(*part.batch, part.m, part.n, part.k))
    scope.push(outer, hoists=False)
    scope.write(*decode(rows, "item / blocks"))
    columns, extent = dims.text(part.n.extent), dims.text(part.k.extent)
    scope.write(f"const int64_t n0 = item % blocks * {_COLUMNS};")
    scope.write(f"const int64_t n1 = tw_lesser(n0 + {_COLUMNS}, {columns});")
    phases = [phase for phase in (*part.phases, part.stats) if phase]
    for phase in phases:
        sweep_row(scope, part.k, phase, name, outer)
    for i, w in enumerate(part.ws):
        scope.write(f"{type} acc{i}[{_COLUMNS}];")
        scope.push(frozenset((n,)), hoists=False)
        scope.write(f"{type} total = 0;")
        scope.push(frozenset((k,)), hoists=False)
        terms = [convert(scope.emit(e), e.dtype, dtype) for e in (part.x, w)]
        fused = f"tw_fma({terms[0]}, {terms[1]}, total)"
        scope.write(f"total = {fused if dtype.is_float else f'total + {terms[0]} * {terms[1]}'};")
        variable = dims.name(k)
        head = f"for (int64_t {variable} = 0; {variable} < {extent}; ++{variable}) {{"
        scope.close(head)
        scope.write(f"acc{i}[{dims.name(n)} - n0] = total;")
        variable = dims.name(n)
        head = f"for (int64_t {variable} = n0; {variable} < n1; ++{variable}) {{"
        scope.close(head)
    sweep(scope, n, "n0", "n1", [store_sink(s) for s in part.stores])
    return [
        *(line for phase in phases for line in combines(kernel, phase, name)),
        f"static void {name}(TW_ARGS) {{",
        *("    " + line for line in declarations(kernel)),
        *("    " + line for line in units((*part.batch, part.m))),
        f"    const int64_t blocks = ({columns} + {_COLUMNS - 1}) / {_COLUMNS};",
        f"    const int64_t items = {dims.text(product(a.extent for a in rows))} * blocks;",
        "    const int64_t first = tw_cut(items, team->tid, team->nthreads);",
        "    const int64_t last = tw_cut(items, team->tid + 1, team->nthreads);",
        "    for (int64_t item = first; item < last; ++item) {",
        *("        " + line for line in scope.pop()),
        "    }",
        "}",
    ]
