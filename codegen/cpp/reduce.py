"""Reduce parts: rows shared among threads; a row is swept once a phase, stretch by stretch."""

from collections.abc import Sequence

from ...ir.dim import product
from ...ir.types import DType
from ..loops import Element, LoopKernel, Reduce, Reduction
from . import dims
from .elements import Scope, value_type
from .pointwise import decode, declarations
from .scalars import convert
from .sweep import buffer_sink, store_sink, sweep

_STATES = {
    "sum": "TwSum<{v}, {a}>", "prod": "TwProd<{v}, {a}>", "any": "TwAny<{v}, {a}>",
    "all": "TwAll<{v}, {a}>", "max": "TwExtreme<true, {v}>", "min": "TwExtreme<false, {v}>",
    "argmax": "TwArg<true, {v}>", "argmin": "TwArg<false, {v}>",
}  # fmt: skip
_IN_ACCUMULATOR = ("sum", "prod", "any", "all")  # the rest compare in the value's own type


def emit_reduce(kernel: LoopKernel, part: Reduce, name: str) -> list[str]:
    """A function that computes the part."""
    rows = tuple(a for a in part.rows if a.extent != 1)
    known = frozenset(a.name for a in part.rows)
    scope = Scope(kernel, known | {part.axis.name})
    lines = [f"static void {name}(TW_ARGS) {{"]
    lines += ["    " + line for line in declarations(kernel)]
    lines += [f"    const int64_t {dims.name(a.name)} = 0;" for a in part.rows if a.extent == 1]
    lines += [
        f"    const int64_t rows = {dims.text(product(a.extent for a in rows))};",
        "    const int64_t first = tw_cut(rows, team->tid, team->nthreads);",
        "    const int64_t last = tw_cut(rows, team->tid + 1, team->nthreads);",
        "    for (int64_t row = first; row < last; ++row) {",
    ]
    scope.push(known, hoists=False)
    for line in decode(rows, "row"):
        scope.write(line)
    extent = dims.text(part.axis.extent)
    for phase in part.phases:
        states = declare_states(scope, phase)
        reduce_stretches(scope, part.axis.name, "0", extent, phase, states)
        for reduction, state in zip(phase, states):
            scope.write(
                f"const {value_type(reduction.dtype)} {reduction.name} = {state}.get();"
            )
            scope.refs[reduction.name] = (reduction.name, known)
    for store in part.row_stores:
        sink_in_row(scope, store)
    if part.stores:
        sweep(scope, part.axis.name, "0", extent, [store_sink(s) for s in part.stores])
    return [*lines, *("        " + line for line in scope.pop()), "    }", "}"]


def sink_in_row(scope: Scope, store) -> None:
    """A store made once a row, in a block of its own when it is guarded."""
    if store.guard is None:
        scope.store(store)
        return
    head = f"if ({scope.emit(store.guard)} >= 0) {{"
    scope.push(hoists=False)
    scope.store(store)
    lines = scope.pop()
    for line in (head, *("    " + x for x in lines), "}"):
        scope.write(line)


def declare_states(scope: Scope, phase: Sequence[Reduction]) -> list[str]:
    """A running state for each reduction."""
    states = []
    for reduction in phase:
        value = scope.dtype_of(reduction.value)
        state = scope.fresh("state")
        types = {"v": value_type(value), "a": value_type(reduction.dtype)}
        scope.write(f"{_STATES[reduction.op].format(**types)} {state};")
        states.append(state)
    return states


def reduce_stretches(
    scope: Scope, axis: str, lo: str, hi: str, phase: Sequence[Reduction], states: Sequence[str]
) -> None:
    """Feed [lo, hi) of the axis to the states, a buffered stretch at a time."""
    start, stop = scope.fresh("start"), scope.fresh("stop")
    scope.push(frozenset(), hoists=False)
    scope.write(f"const int64_t {stop} = tw_lesser({start} + TW_STRETCH, {hi});")
    sinks, adds = buffers(scope, axis, start, stop, phase, states)
    sweep(scope, axis, start, stop, sinks)
    for add in adds:
        scope.write(add)
    body = scope.pop()
    head = f"for (int64_t {start} = {lo}; {start} < {hi}; {start} += TW_STRETCH) {{"
    for line in (head, *("    " + x for x in body), "}"):
        scope.write(line)


def buffers(
    scope: Scope, axis: str, start: str, stop: str, phase: Sequence[Reduction], states
) -> tuple[list, list[str]]:
    """Sinks that buffer the reductions' values, and the calls that consume the buffers."""
    sinks, adds = [], []
    for reduction, state in zip(phase, states):
        value = scope.dtype_of(reduction.value)
        kind = reduction.dtype if reduction.op in _IN_ACCUMULATOR else value
        buffer = scope.fresh("buffer")
        scope.write(f"alignas(64) {value_type(kind)} {buffer}[TW_STRETCH];")
        place = f"{buffer}[{dims.name(axis)} - {start}]"
        sinks.append(buffer_sink(place, reduction.value, _converter(scope, kind)))
        adds.append(f"{state}.add({buffer}, {stop} - {start}, {start});")
    return sinks, adds


def _converter(scope: Scope, kind: DType):
    def fit(text: str, element: Element) -> str:
        return convert(text, scope.dtype_of(element), kind)

    return fit
