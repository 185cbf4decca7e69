"""Reduce parts: rows shared among threads; a row is swept once a phase, stretch by stretch.

Long rows are cut into chunks whose states are merged in order. When there are fewer rows than
threads, the threads share out the chunks of each row instead: the same sums in the same order.
"""

from collections.abc import Sequence

from ...ir.dim import Dim, product, substitute
from ...ir.indexing import coefficient_of
from ..loops import Axis, Load, LoopKernel, Reduce, Reduction
from ..templates.template import Bucket
from . import dims
from .combine import combine_struct
from .elements import Scope, decode, stored_type, value_type
from .reduce_columns import columns_of, emit_columns
from .schedules import ColumnsSchedule, FixedSchedule
from .sweep import buffer_sink, store_sink, sweep

# (function, identity, whether the index is wanted) -> the state for it; others fold one by one
_STATES = {
    ("add", 0, False): "TwSum<{v}, {a}>", ("mul", 1, False): "TwProd<{v}, {a}>",
    ("or", False, False): "TwAny<{v}, {a}>", ("and", True, False): "TwAll<{v}, {a}>",
    ("maximum", "lowest", False): "TwExtreme<true, {v}>",
    ("minimum", "highest", False): "TwExtreme<false, {v}>",
    ("maximum", "lowest", True): "TwArg<true, {v}>",
    ("minimum", "highest", True): "TwArg<false, {v}>",
}  # fmt: skip
CHUNK = 16384  # elements whose state is merged as one: decides bits, so not to be tuned lightly
_STATE_BYTES = 32  # room of one state; checked by the compiler


def reduce_buckets(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """One for any size; of rows that do not lie side by side nothing is chosen."""
    is_rows = columns_of(kernel.parts[0]) is None  # type: ignore[arg-type]
    return 0, [(0, None, FixedSchedule() if is_rows else ColumnsSchedule())]


def emit_reduce(
    kernel: LoopKernel, part: Reduce, name: str, schedule: ColumnsSchedule | FixedSchedule
) -> list[str]:
    """A function that computes the part."""
    if isinstance(schedule, ColumnsSchedule):
        return emit_columns(kernel, part, name, schedule.columns)
    return _Emitter(kernel, part, name).lines()


def reduce_scratch(
    kernel: LoopKernel, part: Reduce, name: str, schedule: ColumnsSchedule | FixedSchedule
) -> list[str]:
    """What a long row's chunks leave."""
    if isinstance(schedule, ColumnsSchedule) or not has_chunks(part):
        return []
    return [
        f"const int64_t chunks = ({dims.text(part.axis.extent)} + {CHUNK - 1}) / {CHUNK};",
        f"need[1] = tw_greater(need[1], 2 * {len(part.phases)} * chunks * {name}_bytes);",
    ]


def has_chunks(part: Reduce) -> bool:
    """Whether a row may be longer than one chunk."""
    return bool(part.phases) and not (
        isinstance(part.axis.extent, int) and part.axis.extent <= CHUNK
    )


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Reduce, name: str):
        self.part, self.name = part, name
        self.known = frozenset(a.name for a in part.rows)
        self.scope = Scope(kernel, (*part.rows, part.axis))
        self.extent = dims.text(part.axis.extent)
        self.chunked = has_chunks(part)
        self.structs = [line for p in part.phases for line in combines(kernel, p, name)]

    def lines(self) -> list[str]:
        scope, rows = self.scope, tuple(a for a in self.part.rows if a.extent != 1)
        first, last = (f"tw_cut(rows, team->tid{n}, team->nthreads)" for n in ("", " + 1"))
        with scope.function(self.name, self.part.rows):
            scope.write(f"const int64_t rows = {dims.text(product(a.extent for a in rows))};")
            if self.chunked:
                scope.write(
                    f"const int64_t chunks = ({self.extent} + {CHUNK - 1}) / {CHUNK};",
                    "// fewer rows than threads: all threads work on each row",
                    "const bool wide = rows < team->nthreads && chunks > 1;",
                )
                first, last = f"wide ? 0 : {first}", f"wide ? rows : {last}"
            scope.write(f"const int64_t first = {first};", f"const int64_t last = {last};")
            head = "for (int64_t row = first; row < last; ++row) {"
            with scope.block(head, known=self.known):
                scope.write(*decode(rows, "row"))
                self.row()
        return [*self.structs, *scope.lines]

    def row(self) -> None:
        """The body of the loop over rows."""
        scope, part = self.scope, self.part
        for number, phase in enumerate(part.phases):
            if not self.chunked:
                sweep_row(scope, part.axis, phase, self.name, self.known)
                continue
            define(scope, phase, self.chunks(number, phase), self.known)
        if part.row_stores:
            with scope.block("if (!wide || team->tid == 0) {" if self.chunked else "{"):
                for store in part.row_stores:
                    sink_in_row(scope, store)
        if part.stores:
            lo, hi = "0", self.extent
            if self.chunked:
                lo, hi = scope.fresh("lo"), scope.fresh("hi")
                share = f"tw_cut({self.extent}, team->tid{{}}, team->nthreads)"
                scope.write(f"const int64_t {lo} = wide ? {share.format('')} : 0;")
                scope.write(f"const int64_t {hi} = wide ? {share.format(' + 1')} : {self.extent};")
            sweep(scope, part.axis.name, lo, hi, [store_sink(s) for s in part.stores])

    def chunks(self, number: int, phase: Sequence[Reduction]) -> list[str]:
        """The states of a phase, merged over chunks; written for one thread and for all."""
        scope, struct = self.scope, f"{self.name}_phase{number}"
        total, part = f"total{number}", f"part{number}"
        self.structs += self.struct(struct, number, phase)
        scope.write(
            f"{struct} {total};",
            f"{struct}* const shared{number} = ({struct}*)(team->shared + "
            f"((row & 1) * {len(self.part.phases)} + {number}) * chunks * {self.name}_bytes);",
            f"const int64_t from{number} = wide ? tw_cut(chunks, team->tid, team->nthreads) : 0;",
            f"const int64_t to{number} = "
            "wide ? tw_cut(chunks, team->tid + 1, team->nthreads) : chunks;",
        )
        with scope.block(f"for (int64_t chunk = from{number}; chunk < to{number}; ++chunk) {{"):
            scope.write(
                f"{struct} {part};",
                f"const int64_t lo = chunk * {CHUNK};",
                f"const int64_t hi = tw_lesser(lo + {CHUNK}, {self.extent});",
            )
            states = [f"{part}.s{i}" for i in range(len(phase))]
            reduce_stretches(scope, self.part.axis.name, "lo", "hi", phase, states)
            scope.write(f"if (wide) shared{number}[chunk] = {part};")
            scope.write(f"else {total}.merge({part});")
        scope.write(
            "if (wide) {",
            "    tw_barrier(team);",
            "    for (int64_t chunk = 0; chunk < chunks; ++chunk)",
            f"        {total}.merge(shared{number}[chunk]);",
            "}",
        )
        return [f"{total}.s{i}" for i in range(len(phase))]

    def struct(self, name: str, number: int, phase: Sequence[Reduction]) -> list[str]:
        kinds = [state_type(reduction, self.name) for reduction in phase]
        merges = " ".join(f"s{i}.merge(later.s{i});" for i in range(len(kinds)))
        most = max(len(p) for p in self.part.phases)
        room = f"static const int64_t {self.name}_bytes = {_STATE_BYTES * most};"
        size = [room] if number == 0 else []
        return [
            *size,
            f"struct {name} {{",
            *(f"    {kind} s{i};" for i, kind in enumerate(kinds)),
            f"    void merge(const {name}& later) {{ {merges} }}",
            "};",
            f'static_assert(sizeof({name}) <= {self.name}_bytes, "room of a chunk\'s state");',
            "",
        ]


def sink_in_row(scope: Scope, store) -> None:
    """A store made once a row, in a block of its own when it is guarded."""
    if store.guard is None:
        scope.store(store)
        return
    with scope.block(f"if ({scope.emit(store.guard)} >= 0) {{"):
        scope.store(store)


def combines(kernel: LoopKernel, reductions: Sequence[Reduction], name: str) -> list[str]:
    """How states that `name` declares put two values together, where tw_reduce.h does not know."""
    lines = []
    for reduction in reductions:
        if _known_state(reduction) is not None:
            continue
        of, own = reduction.value.dtype, f"{name}_{reduction.name}"
        lines += combine_struct(kernel, reduction.combine, of, reduction.running, own)
    return lines


def declare_states(scope: Scope, phase: Sequence[Reduction], name: str) -> list[str]:
    """A running state for each reduction of the part `name`."""
    states = []
    for reduction in phase:
        state = scope.fresh("state")
        scope.write(f"{state_type(reduction, name)} {state};")
        states.append(state)
    return states


def state_type(reduction: Reduction, name: str) -> str:
    """The C++ type of the running state of a reduction of the part `name`."""
    known = _known_state(reduction)
    if known is not None:
        return known
    return f"Tw{'Place' if reduction.combine.picks_index else 'Fold'}<{name}_{reduction.name}>"


def _known_state(reduction: Reduction) -> str | None:
    combine = reduction.combine
    state = _STATES.get((combine.function, combine.identity, combine.picks_index))
    value, running = value_type(reduction.value.dtype), value_type(reduction.running)
    return None if state is None else state.format(v=value, a=running)


def sweep_row(
    scope: Scope, axis: Axis, phase: Sequence[Reduction], name: str, known: frozenset[str]
) -> None:
    """Make the results of a phase known, of one row: `known` are its axes."""
    states = declare_states(scope, phase, name)
    reduce_stretches(scope, axis.name, "0", dims.text(axis.extent), phase, states)
    define(scope, phase, states, known)


def define(
    scope: Scope, phase: Sequence[Reduction], states: Sequence[str], known: frozenset[str]
) -> None:
    """Make what the states have come to known by the names of the reductions."""
    for reduction, state in zip(phase, states):
        kind = value_type(reduction.dtype)
        scope.write(f"const {kind} {reduction.name} = {state}.get();")
        scope.refs[reduction.name] = (reduction.name, known)


def reduce_stretches(
    scope: Scope, axis: str, lo: str, hi: str, phase: Sequence[Reduction], states: Sequence[str]
) -> None:
    """Feed [lo, hi) of the axis to the states, a buffered stretch at a time."""
    start, stop = scope.fresh("start"), scope.fresh("stop")
    with scope.block(f"for (int64_t {start} = {lo}; {start} < {hi}; {start} += TW_STRETCH) {{"):
        scope.write(f"const int64_t {stop} = tw_lesser({start} + TW_STRETCH, {hi});")
        sinks, adds = buffers(scope, axis, start, stop, phase, states)
        sweep(scope, axis, start, stop, sinks)
        scope.write(*adds)


def buffers(
    scope: Scope, axis: str, start: str, stop: str, phase: Sequence[Reduction], states
) -> tuple[list, list[str]]:
    """Sinks that buffer the reductions' values, and the calls that consume the stretch."""
    sinks, adds = [], []
    for reduction, state in zip(phase, states):
        kind = reduction.running
        values = _in_memory(scope, reduction, axis, start)
        if values is None:
            values = scope.fresh("buffer")
            scope.write(f"alignas(64) {value_type(kind)} {values}[TW_STRETCH];")
            place = f"{values}[{dims.name(axis)} - {start}]"
            sinks.append(buffer_sink(place, reduction.value, kind))
        adds.append(f"{state}.add({values}, {stop} - {start}, {start});")
    return sinks, adds


def _in_memory(scope: Scope, reduction: Reduction, axis: str, start: str) -> str | None:
    """Where the values from `start` on lie side by side as the state takes them, if they do.

    A copy in a buffer would cost a plain sum of long rows half its speed: while a stretch is summed
    nothing is asked of memory.
    """
    load = reduction.value
    if not isinstance(load, Load) or load.indirect or coefficient_of(load.offset, axis) != 1:
        return None
    if stored_type(scope.kernel.params[load.param].type) != value_type(reduction.running):
        return None
    return f"p{load.param} + {scope.dim(substitute(load.offset, {axis: 0}))} + {start}"
