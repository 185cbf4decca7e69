"""Whether a program is whole: every name is there, every value is written before it is read.

What can be said only of numbers, that the arena holds every buffer and that no two of them meet, is
checked when sizes are bound: runtime/check_sizes.py.
"""

from collections.abc import Iterator

from ..ir.abi import RECORD_BYTES, RECORD_WORDS
from ..ir.dim import Dim, symbols_of
from ..ir.errors import ArtifactError, listed
from ..ir.program import Buffer, Program
from ..ir.steps import walk
from ..ir.target import TARGETS
from ..ir.types import i64
from .check_steps import check_order, check_steps

ROLES = ("input", "output", "weight", "state", "temp", "fault")
MAX_NAME = 200
MAX_RANK = 64
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
        *check_steps(program),
    ]
    if not problems:
        problems = list(check_order(program))  # names are known to be there
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
