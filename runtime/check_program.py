"""Whether a program is whole: every name is there, every value is written before it is read.

What can be said only of numbers, that the arena holds every buffer and that no two of them meet, is
checked when sizes are bound: runtime/check_sizes.py.
"""

from collections.abc import Iterator, Sequence

from ..ir.abi import RECORD_BYTES, RECORD_WORDS
from ..ir.dim import Dim, symbols_of
from ..ir.errors import ArtifactError, listed
from ..ir.program import DIM, Buffer, Program
from ..ir.steps import (
    OPERATIONS,
    REDUCTIONS,
    BindSize,
    Choice,
    Collective,
    Cond,
    LaunchStep,
    ScanLoop,
    Step,
    While,
    walk,
)
from ..ir.target import TARGETS
from ..ir.types import DTYPES, bool_, i64

ROLES = ("input", "output", "weight", "state", "temp", "fault", "counter")
MAX_NAME = 200
MAX_RANK = 64
MAX_DEPTH = 32  # of regions inside regions
_PASSED = "has passed check_program"


def check_program(program: Program) -> None:
    """ArtifactError listing what is missing or contradicts itself.

    A program that a compiler made passes; one that was stored, edited or made by hand may not, and
    would otherwise read memory that is not its own. One that has passed is not looked at again.
    """
    if _PASSED in vars(program):
        return
    problems = [
        *_symbols(program),
        *_buffers(program),
        *_states(program),
        *_kernels(program),
        *_steps(program),
    ]
    if not problems:
        problems = list(_order(program))  # names are known to be there
    if problems:
        raise ArtifactError(
            f"program {program.name[:MAX_NAME]} is not whole",
            facts=listed([problem[: 3 * MAX_NAME] for problem in problems]),
            fix="build it again",
        )
    vars(program)[_PASSED] = True  # of this object, which is frozen: as cached properties do


def _symbols(program: Program) -> Iterator[str]:
    for name, symbol in program.symbols.items():
        if (
            symbol.lo < 0
            or symbol.multiple < 1
            or (symbol.hi is not None and symbol.hi < symbol.lo)
        ):
            yield f"dim {name} has no range: {symbol}"
    known = program.symbols.keys()
    for where, dim in _all_dims(program):
        unknown = symbols_of(dim) - known
        if unknown:
            yield f"{where} has the undeclared dims {', '.join(sorted(unknown))}"


def _all_dims(program: Program) -> Iterator[tuple[str, Dim]]:
    yield "the arena", program.arena_bytes
    for buffer in program.buffers.values():
        for dim in (*buffer.type.shape, 0 if buffer.offset is None else buffer.offset):
            yield f"buffer {buffer.name}", dim
    for step in walk(program.steps):
        for dim in step.dims:
            yield f"step {step.name}", dim


def _buffers(program: Program) -> Iterator[str]:
    for name in (*program.inputs, *program.outputs):
        if name not in program.buffers:
            yield f"{name} is an input or output, but no buffer"
    if len(set(program.inputs)) < len(program.inputs):
        yield "an input is there twice"
    for name in program.inputs:
        if name in program.buffers and program.buffers[name].role != "input":
            yield f"input {name} has the role {program.buffers[name].role}"
    for name, buffer in program.buffers.items():
        if buffer.name != name:
            yield f"buffer {name} calls itself {buffer.name}"
        if buffer.role not in ROLES:
            yield f"buffer {name} has the role {buffer.role!r}; roles are {', '.join(ROLES)}"
        if buffer.role == "temp" and buffer.offset is None and name not in program.late_buffers:
            yield f"temporary buffer {name} has no offset in the arena"
        if buffer.role == "fault" and not _holds_records(buffer, len(program.checks)):
            yield f"buffer {name} is not among the records of {len(program.checks)} checks"
        if buffer.role == "counter" and buffer.type.symbols:
            yield f"buffer {name} is {buffer.type}, and the size of counters must be known"
        if buffer.role not in ("temp", "fault") and buffer.offset is not None:
            yield f"buffer {name} has an offset in the arena, and the role {buffer.role}"
        if buffer.role == "input" and name not in program.inputs:
            yield f"buffer {name} has the role input, but is none of the inputs"
        if buffer.role == "output" and name not in program.outputs:
            yield f"buffer {name} has the role output, but is none of the outputs"
        if buffer.type.rank > MAX_RANK:
            yield f"buffer {name} has {buffer.type.rank} axes, at most {MAX_RANK} are possible"


def _states(program: Program) -> Iterator[str]:
    if program.kv is None:
        return
    if type(program.kv.page_size) is not int or program.kv.page_size < 1:
        yield f"a page has {program.kv.page_size!r} tokens"
        return
    for layer in program.kv.layers:
        pools = (layer.k, layer.v)
        numbers = [n for pool in pools for n in (pool.num_heads, pool.head_dim)]
        if min(numbers) < 1 or (layer.window is not None and layer.window < 1):
            yield f"a layer's keys and values are {layer}"
    for pool in program.kv.pools:
        buffer = program.buffers.get(pool.state)
        if buffer is None or buffer.role != "state":
            yield f"keys or values lie in {pool.state}, which is no state"
        elif buffer.type.rank != 4 or buffer.type != pool.type(
            buffer.type.shape[0], program.kv.page_size
        ):
            yield f"keys or values lie in {pool.state}, which is {buffer.type}: {pool}"


def _holds_records(buffer: Buffer, checks: int) -> bool:
    shape, offset = buffer.type.shape, buffer.offset
    if buffer.type.dtype is not i64 or len(shape) != 2 or shape[1] != RECORD_WORDS:
        return False
    if not isinstance(shape[0], int) or not isinstance(offset, int):
        return False
    first, rest = divmod(offset, RECORD_BYTES)
    return rest == 0 and 0 <= first <= first + shape[0] <= checks


def _kernels(program: Program) -> Iterator[str]:
    for name, kernel in program.kernels.items():
        if kernel.name != name:
            yield f"kernel {name} calls itself {kernel.name}"
        if kernel.binary not in program.blobs:
            yield f"kernel {name} is said to be in {kernel.binary}, and there is no such binary"
        if min(kernel.num_warps, kernel.shared_bytes, kernel.scratch_bytes) < 0:
            yield f"kernel {name} is launched with a negative number"
    for name in (*program.kernels, *program.blobs):
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            yield f"{name[:MAX_NAME]!r} is not a name for a kernel or a binary"
    binaries = {kernel.binary for kernel in program.kernels.values()}
    target = TARGETS.get(program.target)
    if target is None:
        yield f"the program is for {program.target!r}, and there is no such target"
    elif not target.is_gpu and len(binaries) > 1:
        yield f"a CPU program has one library, this one {', '.join(sorted(binaries))}"


# ---- steps -----------------------------------------------------------------------------------


def _steps(program: Program) -> Iterator[str]:
    """What names something that is not there, or does not fit it."""
    for step in walk(program.steps):
        used = dict.fromkeys((*step.reads, *step.writes))
        missing = [name for name in used if name not in program.buffers]
        if isinstance(step, LaunchStep):
            yield from _launch(program, step, missing)
        for name in missing:
            yield f"step {step.name} uses {name}, and there is no such buffer"
        if isinstance(step, BindSize) and not missing:
            type = program.buffers[step.source].type
            if type.dtype is not i64 or type.numel != 1:
                yield f"step {step.name} reads a size from {step.source}, which is {type}"
        if isinstance(step, (Cond, While)):
            yield from _predicate(program, step)
        if isinstance(step, Collective):
            if step.operation not in OPERATIONS or step.reduction not in REDUCTIONS:
                yield f"step {step.name} is a {step.operation} of {step.reduction}: unknown"
            types = [program.buffers[n].type for n in (step.source, step.target) if not missing]
            if len({(t.dtype, t.rank) for t in types}) > 1 or any(t.rank == 0 for t in types):
                yield f"step {step.name} is from {types[0]} to {types[1]}"
        for name in step.binds:
            if name not in program.symbols:
                yield f"step {step.name} binds {name}, which is not declared"
    yield from _late(program)


def _launch(program: Program, step: LaunchStep, missing: Sequence[str]) -> Iterator[str]:
    if not step.choices:
        yield f"step {step.name} has no kernel"
    if len(step.products) not in (0, 2) or not DTYPES.keys() >= set(step.products):
        yield f"step {step.name} multiplies {', '.join(step.products)}"
    for choice in step.choices:
        names = {arg for arg in choice.args if isinstance(arg, str)}
        for name in set(choice.writes) - names:
            yield f"step {step.name} writes {name}, which it is not given"
        if choice.kernel not in program.kernels:
            yield f"step {step.name} runs {choice.kernel}, and there is no such kernel"
        elif names.isdisjoint(missing):
            yield from _arguments(program, step, choice)


def _arguments(program: Program, step: LaunchStep, choice: Choice) -> Iterator[str]:
    stated = program.kernels[choice.kernel].args
    given = tuple(
        program.buffers[arg].type.dtype.name if isinstance(arg, str) else DIM for arg in choice.args
    )
    if stated is not None and stated != given:
        yield (
            f"step {step.name} runs {choice.kernel} with {', '.join(given)};"
            f" it takes {', '.join(stated)}"
        )


def _predicate(program: Program, step: Cond | While) -> Iterator[str]:
    buffer = program.buffers.get(step.predicate)
    if buffer is None:
        yield f"step {step.name} asks {step.predicate}, and there is no such buffer"
    elif buffer.type.dtype is not bool_ or buffer.type.numel != 1:
        yield f"step {step.name} asks {step.predicate}, which is {buffer.type}, not one bool"


def _late(program: Program) -> Iterator[str]:
    """What must be known when a run begins, and is not."""
    names = [name for step in walk(program.steps) for name in step.binds]
    counters = [step.index for step in walk(program.steps) if isinstance(step, ScanLoop)]
    for name in dict.fromkeys(n for n in (*names, *counters) if (names + counters).count(n) > 1):
        yield f"dim {name} is bound by two steps"
    for name in counters:
        if name not in program.symbols:
            yield f"the counter {name} is not declared"
    late = frozenset((*names, *counters))
    if not late:
        return
    early = {b.name: b for b in program.buffers.values() if b.role not in ("temp", "output")}
    for name, buffer in program.buffers.items():
        of_type = buffer.type.symbols & late
        of_place = symbols_of(buffer.offset if buffer.offset is not None else 0) & late
        if of_place or of_type & set(counters) or (of_type and name in early):
            known = ", ".join(sorted(of_place | of_type))
            yield f"buffer {name} has a place or size that only steps bind: {known}"
        elif of_type and buffer.offset is not None:
            yield f"buffer {name} lies in the arena, and steps bind its size"
    if symbols_of(program.arena_bytes) & late:
        yield "the arena's size is bound by steps"


def _order(program: Program) -> Iterator[str]:
    """What is read before anything wrote it, or written though it belongs to somebody else.

    Of a launch's choices one runs, and which is known with the sizes: what one of them writes
    counts as written. So does what the body of a scan writes: it fills slices, one each time.
    """
    written = {n for n, b in program.buffers.items() if b.role not in ("output", "temp")}
    yield from _ordered(program, program.steps, written, set(program.late_symbols), MAX_DEPTH)
    for name in program.outputs:
        if name not in written:
            yield f"output {name} is written by no step"


def _ordered(
    program: Program, steps: Sequence[Step], written: set[str], unbound: set[str], depth: int
) -> Iterator[str]:
    """The problems of `steps`, which may read `written`; adds to it what they write.

    `unbound` are the symbols that have no value yet; what the steps bind is taken out.
    """
    if depth < 0:
        yield f"regions lie more than {MAX_DEPTH} deep in one another"
        return
    for step in steps:
        reads, writes = step.reads, step.writes
        if unbound:  # of most programs all sizes are known when a run begins
            needed = frozenset().union(*(program.buffers[name].type.symbols for name in reads))
            own = {s for dim in step.dims for s in symbols_of(dim)}
            own.update(*(program.buffers[name].type.symbols for name in writes))
            for name in sorted((needed | (own - set(step.binds))) & unbound):
                yield f"step {step.name} needs dim {name}, which no step before it binds"
            unbound.difference_update(step.binds)
        for name in reads:
            if name not in written:
                yield f"step {step.name} reads {name}, which no step before it writes"
        for name in writes:
            role = program.buffers[name].role
            if role in ("input", "weight"):
                yield f"step {step.name} writes {name}, whose role is {role}"
        written.update(writes)
        if isinstance(step, Cond):
            both = [set(written), set(written)]
            for body, after in zip(step.bodies, both):
                yield from _ordered(program, body, after, set(unbound), depth - 1)
            written |= both[0] & both[1]
        elif isinstance(step, While):
            inner = set(unbound)
            yield from _ordered(program, step.test, written, inner, depth - 1)
            if step.predicate not in written:
                yield f"step {step.name} asks {step.predicate}, which its test does not write"
            yield from _ordered(program, step.body, set(written), inner, depth - 1)
        elif isinstance(step, ScanLoop):
            yield from _ordered(program, step.body, written, unbound - {step.index}, depth - 1)
