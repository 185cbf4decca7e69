"""From values of symbols to everything a run needs: launches, offsets, shapes, costs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.dim import Dim, compile_dims
from ..ir.errors import DimError
from ..ir.program import Buffer, Choice, Program, Step
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
        self.index = {name: i for i, name in enumerate(program.buffers)}
        dims = list(dict.fromkeys(self._all_dims()))
        self._place = {dim: i for i, dim in enumerate(dims)}
        self._names = tuple(program.symbols)
        self._evaluate = compile_dims(dims, self._names)
        self._temps = [
            (self.index[b.name], b.offset) for b in program.buffers.values() if _is_temp(b)
        ]

    def _all_dims(self) -> Iterable[Dim]:
        program = self.program
        yield program.arena_bytes
        for buffer in program.buffers.values():
            yield from buffer.type.shape
            yield 0 if buffer.offset is None else buffer.offset
        for step in program.steps:
            yield from (step.select, step.traffic, step.operations)
            for choice in step.choices:
                yield from (arg for arg in choice.args if not isinstance(arg, str))
                yield from choice.grid

    def bind(self, values: Mapping[str, int]) -> Binding:
        """DimError when no kernel of a step covers the sizes."""
        number = self._numbers(values)
        launches = []
        for index, step in enumerate(self.program.steps):
            choice = _choose(step, number(step.select), values)
            grid = tuple(map(number, choice.grid))
            if 0 in grid:
                continue
            buffers = tuple(self.index[a] for a in choice.args if isinstance(a, str))
            dims = tuple(number(a) for a in choice.args if not isinstance(a, str))
            kernel = self.program.kernels[choice.kernel]
            launches.append(Launch(index, kernel, buffers, dims, grid))
        return Binding(
            values,
            tuple(launches),
            tuple(tuple(map(number, b.type.shape)) for b in self.program.buffers.values()),
            number(self.program.arena_bytes),
            np.array([i for i, _ in self._temps], np.int64),
            np.array([number(offset) for _, offset in self._temps], np.uint64),
        )

    def costs(self, values: Mapping[str, int]) -> list[tuple[int, int]]:
        """(bytes that must move, operations) of each step."""
        number = self._numbers(values)
        return [(number(s.traffic), number(s.operations)) for s in self.program.steps]

    def arena_bytes(self, values: Mapping[str, int]) -> int:
        """Bytes of the arena at these sizes."""
        return self._numbers(values)(self.program.arena_bytes)

    def _numbers(self, values: Mapping[str, int]):
        results = self._evaluate(*(values[name] for name in self._names))
        place = self._place
        return lambda dim: dim if isinstance(dim, int) else results[place[dim]]


def _is_temp(buffer: Buffer) -> bool:
    return buffer.offset is not None


def _choose(step: Step, value: int, values: Mapping[str, int]) -> Choice:
    for choice in step.choices:
        if choice.lo <= value and (choice.hi is None or value <= choice.hi):
            return choice
    ranges = ", ".join(f"[{c.lo}, {'any' if c.hi is None else c.hi}]" for c in step.choices)
    raise DimError(
        f"no kernel of step {step.name} covers these sizes",
        where=step.loc or step.name,
        facts=f"{step.select} is {value} for {dict(values)}; kernels cover {ranges}",
        fix="this is a fault of the compiler: please report it with the program's graph",
    )
