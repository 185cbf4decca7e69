"""Reduce parts whose rows lie side by side: many rows at once, one place of the axis at a time.

So do depthwise convolutions, pooling and sums over the first axes, with channels side by side.
"""

from ...ir.dim import product
from ...ir.indexing import coefficient_of
from ..elements import loads_of
from ..inline import combination
from ..loops import Axis, Cast, Element, LoopKernel, Reduce, Reduction, Ref
from . import dims
from .elements import Scope, decode, value_type
from .scalars import constant
from .sweep import buffer_sink, store_sink, sweep

SHORT = 64  # elements of rows that cost less all at once, wherever they lie, than one by one
LENGTH = 256  # elements combined from nothing before they join a row's total: decides bits


def columns_of(part: Reduce) -> Axis | None:
    """The axis along which the rows of a part lie side by side, or short ones at equal distances.

    None where they do not, or where each row itself lies side by side.
    """
    rows = [a for a in part.rows if a.extent != 1]
    reductions = [r for phase in part.phases for r in phase]
    if not rows or len(part.phases) != 1 or part.stores or part.axis.extent == 1:
        return None
    if any(r.combine.picks_index or r.combine.function is None for r in reductions):
        return None
    if any(store.guard is not None for store in part.row_stores):
        return None
    loads = loads_of(tuple(r.value for r in reductions))
    if any(coefficient_of(load.offset, part.axis.name) == 1 for load in loads):
        return None
    steps = {a: [coefficient_of(load.offset, a.name) for load in loads] for a in rows}
    # the last of them, if there are several: it is what is stored side by side
    side_by_side = [a for a in rows if 1 in steps[a] and None not in steps[a]]
    if side_by_side:
        return side_by_side[-1]
    is_short = isinstance(part.axis.extent, int) and part.axis.extent <= SHORT
    return rows[-1] if is_short and None not in steps[rows[-1]] else None


def emit_columns(kernel: LoopKernel, part: Reduce, name: str, columns: int) -> list[str]:
    """A function that computes the part, `columns` rows at a time."""
    (phase,) = part.phases
    column = columns_of(part)
    outer = [a for a in part.rows if a.extent != 1 and a is not column]
    scope = Scope(kernel, (*part.rows, part.axis))
    known = scope.axes - {column.name, part.axis.name}
    at, count = f"[{dims.name(column.name)} - lo]", dims.text(column.extent)
    with scope.function(name, part.rows):
        scope.write(
            f"const int64_t blocks = ({count} + {columns - 1}) / {columns};",
            f"const int64_t items = {dims.text(product(a.extent for a in outer))} * blocks;",
        )
        with scope.shared("item", "items", known):
            scope.write(
                *decode(outer, "item / blocks"),
                f"const int64_t lo = item % blocks * {columns};",
                f"const int64_t hi = tw_lesser(lo + {columns}, {count});",
            )
            _reduce(scope, part.axis, column.name, phase, at, columns)
            for reduction in phase:
                text = f"{reduction.name}{at}"
                scope.refs[reduction.name] = text, known | {column.name}
            sweep(scope, column.name, "lo", "hi", [store_sink(s) for s in part.row_stores])
    return scope.lines


def _reduce(
    scope: Scope, axis: Axis, column: str, phase: tuple[Reduction, ...], at: str, columns: int
) -> None:
    """Bring the running values of a block of columns to the end of the axis."""
    extent, names = dims.text(axis.extent), [r.name for r in phase]
    is_short = isinstance(axis.extent, int) and axis.extent <= LENGTH
    _start(scope, phase, names, columns)
    if is_short:
        _combine(scope, axis, column, phase, names, at, "0", extent)
        return
    parts = [f"{name}_part" for name in names]
    with scope.block(f"for (int64_t start = 0; start < {extent}; start += {LENGTH}) {{"):
        _start(scope, phase, parts, columns)
        stop = f"tw_lesser(start + {LENGTH}, {extent})"
        _combine(scope, axis, column, phase, parts, at, "start", stop)
        sinks = []
        for reduction, name, part in zip(phase, names, parts):
            total = _running(scope, reduction, name, at, column)
            other = _running(scope, reduction, part, at, column)
            element = combination(reduction.combine, total, other)
            sinks.append(buffer_sink(f"{name}{at}", element, reduction.running))
        sweep(scope, column, "lo", "hi", sinks)


def _start(scope: Scope, phase: tuple[Reduction, ...], names: list[str], columns: int) -> None:
    for reduction, name in zip(phase, names):
        identity = constant(reduction.combine.identity_of(reduction.running), reduction.running)
        scope.write(
            f"alignas(64) {value_type(reduction.running)} {name}[{columns}];",
            f"for (int64_t i = 0; i < {columns}; ++i) {name}[i] = {identity};",
        )


def _combine(
    scope: Scope,
    axis: Axis,
    column: str,
    phase: tuple[Reduction, ...],
    names: list[str],
    at: str,
    lo: str,
    hi: str,
) -> None:
    """Elements [lo, hi) of the axis into the running values."""
    with scope.loop(axis.name, lo, hi):
        sinks = []
        for reduction, name in zip(phase, names):
            value = reduction.value
            if value.dtype != reduction.running:
                value = Cast(value, reduction.running)
            total = _running(scope, reduction, name, at, column)
            element = combination(reduction.combine, total, value)
            sinks.append(buffer_sink(f"{name}{at}", element, reduction.running))
        sweep(scope, column, "lo", "hi", sinks)


def _running(scope: Scope, reduction: Reduction, name: str, at: str, column: str) -> Element:
    """What a column has come to, to be read in a sweep over columns."""
    ref = f"running_{name}"
    scope.refs[ref] = f"{name}{at}", frozenset((column,))
    return Ref(ref, reduction.running)
