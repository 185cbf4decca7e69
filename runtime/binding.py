"""From values of symbols to everything a run needs: launches, offsets, shapes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.dim import Dim, compile_dims, symbols_of
from ..ir.errors import ArtifactError, DimError
from ..ir.program import Kernel, Program
from ..ir.steps import Choice, LaunchStep
from .check_sizes import MemoryCheck
from .device import Launch


class Dims:
    """Some dims of a program as one compiled function of the symbols in them."""

    def __init__(self, program: Program, dims: Iterable[Dim]):
        distinct = list(dict.fromkeys(dims))
        used = frozenset().union(*map(symbols_of, distinct))
        self._program, self.names = program, tuple(n for n in program.symbols if n in used)
        self.place = {dim: i for i, dim in enumerate(distinct)}
        try:
            self._evaluate = compile_dims(distinct, self.names)
        except (SyntaxError, RecursionError, MemoryError) as error:  # nested beyond all bounds
            raise _no_number(program, f"{type(error).__name__}: {error}") from error

    def numbers(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The dims' numbers, each at its `place`. ArtifactError for a division by zero."""
        try:
            return self._evaluate(*[values[name] for name in self.names])
        except ZeroDivisionError as error:
            raise _no_number(self._program, str(error)) from error


class Launches:
    """Launch steps that run one after the other, their dims places in a tuple of numbers."""

    def __init__(self, program: Program, steps: Sequence[LaunchStep], index: Mapping[str, int]):
        self._program, self._index, self.steps = program, index, steps
        self.dims = [dim for step in steps for dim in step.dims]
        self._compiled: tuple[_Step, ...] = ()

    def place(self, place: Mapping[Dim, int]) -> None:
        """Say where the numbers of `dims` will be."""
        self._compiled = tuple(
            _Step(
                place[step.select],
                place[step.traffic],
                place[step.operations],
                tuple(self._choice(choice, place) for choice in step.choices),
            )
            for step in self.steps
        )

    def bind(self, numbers: Sequence[int], values: Mapping[str, int]) -> tuple[Launch, ...]:
        """The launches to make. DimError when no kernel of a step covers the sizes."""
        launches = []
        for index, step in enumerate(self._compiled):
            value = numbers[step.select]
            for choice in step.choices:
                if choice.lo <= value and (choice.hi is None or value <= choice.hi):
                    break
            else:
                raise _uncovered(self.steps[index], value, values)
            grid = tuple([numbers[i] for i in choice.grid])
            if 0 not in grid:
                dims = tuple([numbers[i] for i in choice.dims])
                moved, made = numbers[step.traffic], numbers[step.operations]
                launches.append(
                    Launch(index, choice.kernel, choice.buffers, dims, grid, moved, made)
                )
        return tuple(launches)

    def _choice(self, choice: Choice, place: Mapping[Dim, int]) -> "_Choice":
        return _Choice(
            choice.lo,
            choice.hi,
            self._program.kernels[choice.kernel],
            tuple(self._index[arg] for arg in choice.args if isinstance(arg, str)),
            tuple(place[arg] for arg in choice.args if not isinstance(arg, str)),
            tuple(place[dim] for dim in choice.grid),
        )


@dataclass(frozen=True)
class Binding:
    """A program at one set of sizes."""

    values: Mapping[str, int]
    launches: tuple[Launch, ...]  # empty where the program has other steps too
    # of all buffers, in the program's order; None: known only while the program runs
    shapes: tuple[tuple[int, ...] | None, ...]
    arena_bytes: int
    temps: np.ndarray  # indices of buffers that lie in the arena, and
    offsets: np.ndarray  # where, in bytes from its start (uint64)


class Sizes:
    """All that is known of a program's sizes when a run begins.

    Launches are among it where the program is nothing else; runtime/interpreter.py binds the rest.
    """

    def __init__(self, program: Program):
        self.program = program
        self.index = {name: i for i, name in enumerate(program.buffers)}
        self._check = MemoryCheck(program)
        only = program.only_launches
        self.launches = Launches(program, program.steps if only else (), self.index)  # type: ignore[arg-type]
        check, late = self._check, program.late_buffers
        dims = [program.arena_bytes, *check.sizes, *check.offsets, *self.launches.dims]
        dims += [d for b in program.buffers.values() if b.name not in late for d in b.type.shape]
        self._dims = Dims(program, dims)
        place = self._dims.place
        self.launches.place(place)
        self._shapes = [
            None if b.name in late else tuple(place[d] for d in b.type.shape)
            for b in program.buffers.values()
        ]
        self._temps = np.array([self.index[b.name] for b in check.temps], np.int64)
        self._offsets = [place[offset] for offset in check.offsets]
        self._nbytes = [place[size] for size in check.sizes]

    def bind(self, values: Mapping[str, int]) -> Binding:
        """DimError when no kernel of a step covers the sizes."""
        numbers = self._dims.numbers(values)
        launches = self.launches.bind(numbers, values)
        arena_bytes = numbers[self._dims.place[self.program.arena_bytes]]
        offsets = [numbers[i] for i in self._offsets]
        self._check.check(offsets, [numbers[i] for i in self._nbytes], arena_bytes, dict(values))
        return Binding(
            values,
            launches,
            tuple([None if s is None else tuple([numbers[i] for i in s]) for s in self._shapes]),
            arena_bytes,
            self._temps,
            np.array(offsets, np.uint64),
        )

    def arena_bytes(self, values: Mapping[str, int]) -> int:
        """Bytes of the arena at these sizes."""
        return self._dims.numbers(values)[self._dims.place[self.program.arena_bytes]]


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


def _no_number(program: Program, facts: str) -> ArtifactError:
    return ArtifactError(
        f"the dims of program {program.name} cannot be computed",
        facts=facts,
        fix="build it again",
    )


def _uncovered(step: LaunchStep, value: int, values: Mapping[str, int]) -> DimError:
    ranges = ", ".join(f"[{c.lo}, {'any' if c.hi is None else c.hi}]" for c in step.choices)
    return DimError(
        f"no kernel of step {step.name} covers these sizes",
        where=step.loc or step.name,
        facts=f"{step.select} is {value} for {dict(values)}; kernels cover {ranges}",
        fix="this is a fault of the compiler: please report it with the program's graph",
    )
