"""Whether a program's memory plan holds at given sizes: buffers in the arena, none over another.

A plan is made for all sizes at once, by proof. This looks at the numbers of one binding, so that
neither a damaged program nor a fault of a proof writes over what is not its own.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ..ir.dim import Dim
from ..ir.errors import ArtifactError, listed
from ..ir.program import ALIGNMENT, Program
from ..ir.steps import ScanLoop, Step, While

MAX_BYTES = 1 << 62  # addresses and sizes are 64-bit integers with a sign


class MemoryCheck:
    """Checks the places of the temporary buffers of one program."""

    def __init__(self, program: Program):
        self.temps = [
            b for b in program.buffers.values() if b.role == "temp" and b.offset is not None
        ]
        self.sizes: list[Dim] = [b.type.nbytes for b in self.temps]
        self.offsets: list[Dim] = [b.offset for b in self.temps if b.offset is not None]
        index = {b.name: i for i, b in enumerate(self.temps)}
        first, last = {}, {}
        for name, (start, end) in lifetimes(program.steps).items():
            if name in index:
                first[index[name]], last[index[name]] = start, end
        # pairs that are in use at the same time, in the order in which they come into use
        self._pairs = np.array(_overlapping(first, last), np.int64).reshape(-1, 2)

    def check(
        self, offsets: Sequence[int], sizes: Sequence[int], arena_bytes: int, values: object
    ) -> None:
        """ArtifactError when a buffer leaves the arena, or meets one that is in use."""
        wild = [n for n in (*offsets, *sizes, arena_bytes) if not 0 <= n < MAX_BYTES]
        if wild:
            raise _error([f"a size or an offset is {wild[0]}"], values)
        start, size = np.array(offsets, np.int64), np.array(sizes, np.int64)
        end = start + size
        problems = [
            f"{self.temps[i].name} lies at {start[i]} to {end[i]} in an arena of {arena_bytes}"
            for i in np.flatnonzero(end > arena_bytes)
        ]
        problems += [
            f"{self.temps[i].name} lies at {start[i]}, which is no multiple of {ALIGNMENT}"
            for i in np.flatnonzero(start % ALIGNMENT)
        ]
        a, b = self._pairs.T
        meet = (start[a] < end[b]) & (start[b] < end[a]) & (size[a] > 0) & (size[b] > 0)
        problems += [
            f"{self.temps[i].name} at {start[i]} to {end[i]} and {self.temps[j].name} at"
            f" {start[j]} to {end[j]} are in use at the same time"
            for i, j in self._pairs[meet]
        ]
        if problems:
            raise _error(problems, values)


def lifetimes(steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """The first and the last step that uses each buffer, by their numbers in `walk(steps)`.

    A buffer that a loop shares with steps outside is in use as long as the loop runs.
    """
    used: dict[str, tuple[int, int]] = {}
    loops: list[tuple[int, int]] = []
    _number(steps, 0, used, loops)
    for begin, end in reversed(loops):  # inner ones first: what they stretch the outer ones see
        for name, (first, last) in used.items():
            if first <= end and last >= begin and not begin <= first <= last <= end:
                used[name] = min(first, begin), max(last, end)
    return used


def _number(
    steps: Sequence[Step],
    number: int,
    used: dict[str, tuple[int, int]],
    loops: list[tuple[int, int]],
) -> int:
    for step in steps:
        _use((*step.reads, *step.writes), number, used)
        begin, number = number, number + 1
        is_loop = isinstance(step, (While, ScanLoop))
        if is_loop:
            at = len(loops)
            loops.append((begin, begin))
        for body in step.bodies:
            number = _number(body, number, used, loops)
            if isinstance(step, While) and body is step.test:
                _use((step.predicate,), number - 1, used)  # read once the test has run
        if is_loop:
            loops[at] = (begin, number - 1)
    return number


def _use(names: Iterable[str], number: int, used: dict[str, tuple[int, int]]) -> None:
    for name in names:
        used[name] = used.get(name, (number, number))[0], number


def _overlapping(first: dict[int, int], last: dict[int, int]) -> list[tuple[int, int]]:
    pairs, alive = [], []
    for i in sorted(first, key=first.__getitem__):
        alive = [j for j in alive if last[j] >= first[i]]
        pairs += [(j, i) for j in alive]
        alive.append(i)
    return pairs


def _error(problems: list[str], values: object) -> ArtifactError:
    return ArtifactError(
        "the program's buffers do not fit its memory",
        where=f"sizes {values}",
        facts=listed(problems),
        fix="build it again; if that does not help it is a fault of the compiler: please report it",
    )
