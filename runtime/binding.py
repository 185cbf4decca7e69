"""From values of symbols to everything a run needs: launches, offsets, shapes, costs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.dim import Dim, compile_dims
from ..ir.errors import ArtifactError, DimError
from ..ir.program import Choice, Kernel, Program, Step
from .check_sizes import MemoryCheck
from .device import Launch


@dataclass(frozen=True)
class Binding:
    """A program at one set of sizes."""

    values: Mapping[str, int]
    launches: tuple[Launch, ...]
    shapes: tuple[tuple[int, ...], ...]  # of all buffers, in the program's order
    arena_bytes: int
    temps: np.ndarray  # indices of buffers that lie in the arena, and
    offsets: np.ndarray  # where, in bytes from its start (uint64)


class Sizes:
    """All dims of a program as one compiled function of its symbols."""

    def __init__(self, program: Program):
        self.program = program
        self._check = MemoryCheck(program)
        self.index = {name: i for i, name in enumerate(program.buffers)}
        dims = list(dict.fromkeys(self._all_dims()))
        self._place = {dim: i for i, dim in enumerate(dims)}
        self._names = tuple(program.symbols)
        self._evaluate = _compile(program, dims, self._names)
        self._steps = tuple(map(self._compile_step, program.steps))
        buffers = program.buffers.values()
        self._shapes = [tuple(self._place[d] for d in b.type.shape) for b in buffers]
        temps = [
            (self.index[b.name], self._place[b.offset])
            for b in buffers
            if b.role == "temp" and b.offset is not None
        ]
        self._temps = np.array([index for index, _ in temps], np.int64)
        self._offsets = [offset for _, offset in temps]
        self._nbytes = [self._place[size] for size in self._check.sizes]

    def _all_dims(self) -> Iterable[Dim]:
        program = self.program
        yield program.arena_bytes
        for buffer in program.buffers.values():
            yield from buffer.type.shape
            yield 0 if buffer.offset is None else buffer.offset
        yield from self._check.sizes
        for step in program.steps:
            yield from (step.select, step.traffic, step.operations)
            for choice in step.choices:
                yield from (arg for arg in choice.args if not isinstance(arg, str))
                yield from choice.grid

    def bind(self, values: Mapping[str, int]) -> Binding:
        """DimError when no kernel of a step covers the sizes."""
        numbers = self._numbers(values)
        launches = []
        for index, step in enumerate(self._steps):
            value = numbers[step.select]
            for choice in step.choices:
                if choice.lo <= value and (choice.hi is None or value <= choice.hi):
                    break
            else:
                raise _uncovered(self.program.steps[index], value, values)
            grid = tuple([numbers[i] for i in choice.grid])
            if 0 not in grid:
                dims = tuple([numbers[i] for i in choice.dims])
                work = numbers[step.traffic] + numbers[step.operations]
                launches.append(Launch(index, choice.kernel, choice.buffers, dims, grid, work))
        arena_bytes = numbers[self._place[self.program.arena_bytes]]
        offsets = [numbers[i] for i in self._offsets]
        self._check.check(offsets, [numbers[i] for i in self._nbytes], arena_bytes, dict(values))
        return Binding(
            values,
            tuple(launches),
            tuple([tuple([numbers[i] for i in shape]) for shape in self._shapes]),
            arena_bytes,
            self._temps,
            np.array(offsets, np.uint64),
        )

    def costs(self, values: Mapping[str, int]) -> list[tuple[int, int]]:
        """(bytes that must move, operations) of each step."""
        numbers, place = self._numbers(values), self._place
        steps = self.program.steps
        return [(numbers[place[s.traffic]], numbers[place[s.operations]]) for s in steps]

    def arena_bytes(self, values: Mapping[str, int]) -> int:
        """Bytes of the arena at these sizes."""
        return self._numbers(values)[self._place[self.program.arena_bytes]]

    def _numbers(self, values: Mapping[str, int]) -> tuple[int, ...]:
        try:
            return self._evaluate(*(values[name] for name in self._names))
        except ZeroDivisionError as error:
            raise _no_number(self.program, str(error)) from error

    def _compile_step(self, step: Step) -> "_Step":
        place = self._place
        return _Step(
            place[step.select],
            place[step.traffic],
            place[step.operations],
            tuple(map(self._compile_choice, step.choices)),
        )

    def _compile_choice(self, choice: Choice) -> "_Choice":
        names = [a for a in choice.args if isinstance(a, str)]
        dims = [a for a in choice.args if not isinstance(a, str)]
        return _Choice(
            choice.lo,
            choice.hi,
            self.program.kernels[choice.kernel],
            tuple(self.index[name] for name in names),
            tuple(self._place[dim] for dim in dims),
            tuple(self._place[dim] for dim in choice.grid),
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A Choice whose dims are places in the tuple that the compiled function returns."""

    lo: int
    hi: int | None
    kernel: Kernel
    buffers: tuple[int, ...]
    dims: tuple[int, ...]
    grid: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    select: int
    traffic: int
    operations: int
    choices: tuple[_Choice, ...]


def _compile(program: Program, dims: list[Dim], names: tuple[str, ...]):
    try:
        return compile_dims(dims, names)
    except (SyntaxError, RecursionError, MemoryError) as error:  # nested beyond all bounds
        raise _no_number(program, f"{type(error).__name__}: {error}") from error


def _no_number(program: Program, facts: str) -> ArtifactError:
    return ArtifactError(
        f"the dims of program {program.name} cannot be computed",
        facts=facts,
        fix="build it again",
    )


def _uncovered(step: Step, value: int, values: Mapping[str, int]) -> DimError:
    ranges = ", ".join(f"[{c.lo}, {'any' if c.hi is None else c.hi}]" for c in step.choices)
    return DimError(
        f"no kernel of step {step.name} covers these sizes",
        where=step.loc or step.name,
        facts=f"{step.select} is {value} for {dict(values)}; kernels cover {ranges}",
        fix="this is a fault of the compiler: please report it with the program's graph",
    )
