"""Contractions with f64 sums or of wide integers: for each row and column, one after another."""

from dataclasses import replace

from ...ir.dim import product
from ...ir.facts import Facts
from ...ir.indexing import delinearize
from ..elements import mapped
from ..loops import Contract, Element, Load, LoopKernel, accumulator_of
from . import dims
from .elements import Scope, decode, value_type
from .reduce import combines, sweep_row
from .scalars import convert
from .sweep import store_sink, sweep

_COLUMNS = 64  # columns of one row that one thread takes at a time


def emit_plain(kernel: LoopKernel, part: Contract, name: str) -> list[str]:
    """A function that computes the part."""
    dtype = accumulator_of(part.x_dtype)
    type = value_type(dtype)
    rows = tuple(a for a in (*part.batch, part.m) if a.extent != 1)
    grouping = () if part.group is None else (part.group.axis,)
    outer = frozenset(a.name for a in (*part.batch, part.m, *grouping))
    n, k = part.n.name, part.k.name
    refs = {f"acc{i}": (f"acc{i}[{dims.name(n)} - n0]", outer | {n}) for i in range(len(part.ws))}
    scope = Scope(kernel, (*part.batch, *grouping, part.m, part.n, part.k), refs)
    columns, extent = dims.text(part.n.extent), dims.text(part.k.extent)
    phases = [phase for phase in (*part.phases, part.stats) if phase]
    with scope.function(name, (*part.batch, part.m)):
        scope.write(
            f"const int64_t blocks = ({columns} + {_COLUMNS - 1}) / {_COLUMNS};",
            f"const int64_t items = {dims.text(product(a.extent for a in rows))} * blocks;",
        )
        with scope.shared("item", "items", outer):
            scope.write(
                *decode(rows, "item / blocks"),
                f"const int64_t n0 = item % blocks * {_COLUMNS};",
                f"const int64_t n1 = tw_lesser(n0 + {_COLUMNS}, {columns});",
            )
            if part.group is not None:
                place = scope.emit(part.group.index)
                scope.write(f"const int64_t {dims.name(part.group.axis.name)} = {place};")
            for phase in phases:
                sweep_row(scope, part.k, phase, name, outer)
            for i, w in enumerate(part.ws):
                w = unpack_loads(kernel, w, scope.facts)
                scope.write(f"{type} acc{i}[{_COLUMNS}];")
                with scope.loop(n, "n0", "n1"):
                    scope.write(f"{type} total = 0;")
                    with scope.loop(k, "0", extent):
                        x, y = (convert(scope.emit(e), e.dtype, dtype) for e in (part.x, w))
                        fused = f"tw_fma({x}, {y}, total)"
                        total = fused if dtype.is_float else f"total + {x} * {y}"
                        scope.write(f"total = {total};")
                    scope.write(f"acc{i}[{dims.name(n)} - n0] = total;")
            sweep(scope, n, "n0", "n1", [store_sink(s) for s in part.stores])
    return [*(line for phase in phases for line in combines(kernel, phase, name)), *scope.lines]


def unpack_loads(kernel: LoopKernel, element: Element, facts: Facts) -> Element:
    """Plain offsets of packed weights replaced by where the elements lie."""

    def unpacked(e: Element) -> Element:
        if not isinstance(e, Load) or not kernel.params[e.param].encoding.is_panel:
            return e
        param = kernel.params[e.param]
        index = delinearize(e.offset, param.type.shape, facts)
        offset, _ = param.encoding.place(param.type, index)
        return replace(e, offset=offset)

    return mapped(element, unpacked)
