"""Whether a program is whole: every name it uses is there, every buffer has a place."""

from ..ir.errors import ArtifactError
from ..ir.program import FAULT_BYTES, Buffer, Program
from ..ir.types import i64

ROLES = ("input", "output", "weight", "state", "temp", "fault")


def check_program(program: Program) -> None:
    """ArtifactError listing what is missing or contradicts itself.

    A program that a compiler made passes; one that was stored, edited or made by hand may not, and
    would otherwise read memory that is not its own.
    """
    problems = [*_buffers(program), *_steps(program)]
    if problems:
        raise ArtifactError(
            f"program {program.name} is not whole",
            facts="\n".join(problems[:10]),
            fix="build it again",
        )


def _buffers(program: Program):
    for name in (*program.inputs, *program.outputs):
        if name not in program.buffers:
            yield f"{name} is an input or output, but no buffer"
    for name in program.inputs:
        if name in program.buffers and program.buffers[name].role != "input":
            yield f"input {name} has the role {program.buffers[name].role}"
    for name, buffer in program.buffers.items():
        if buffer.name != name:
            yield f"buffer {name} calls itself {buffer.name}"
        if buffer.role not in ROLES:
            yield f"buffer {name} has the role {buffer.role!r}; roles are {', '.join(ROLES)}"
        if buffer.role == "temp" and buffer.offset is None:
            yield f"temporary buffer {name} has no offset in the arena"
        if buffer.role == "fault" and not _holds_records(buffer, len(program.checks)):
            yield f"buffer {name} is not among the records of {len(program.checks)} checks"
        if buffer.role == "input" and name not in program.inputs:
            yield f"buffer {name} has the role input, but is none of the inputs"
        if buffer.role == "output" and name not in program.outputs:
            yield f"buffer {name} has the role output, but is none of the outputs"


def _holds_records(buffer: Buffer, checks: int) -> bool:
    shape, offset = buffer.type.shape, buffer.offset
    if buffer.type.dtype is not i64 or len(shape) != 2 or shape[1] != 2:
        return False
    if not isinstance(shape[0], int) or not isinstance(offset, int):
        return False
    first, rest = divmod(offset, FAULT_BYTES)
    return rest == 0 and 0 <= first <= first + shape[0] <= checks


def _steps(program: Program):
    for name, kernel in program.kernels.items():
        if kernel.name != name:
            yield f"kernel {name} calls itself {kernel.name}"
        if kernel.binary not in program.blobs:
            yield f"kernel {name} is said to be in {kernel.binary}, and there is no such binary"
    for step in program.steps:
        if not step.choices:
            yield f"step {step.name} has no kernel"
        for choice in step.choices:
            if choice.kernel not in program.kernels:
                yield f"step {step.name} runs {choice.kernel}, and there is no such kernel"
            for arg in choice.args:
                if isinstance(arg, str) and arg not in program.buffers:
                    yield f"step {step.name} uses {arg}, and there is no such buffer"
