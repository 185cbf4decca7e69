"""Blocks of a device's plan: launches with the copies, branches and loops around them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from ..ir.dim import Dim, substitute
from ..ir.errors import ArtifactError
from ..ir.indexing import coefficient_of
from ..ir.program import Program
from ..ir.steps import Cond, Copy, LaunchStep, ScanLoop, Step
from .device import Item, Launch, Move, Nest

Number = Callable[[Dim], int]


class Blocks:
    """Makes items of steps once all their sizes are known."""

    def __init__(self, program: Program, steps: Sequence[Step], index: Mapping[str, int]):
        self._program, self._steps, self._index = program, steps, index

    def bind(self, launches: Sequence[Launch], number: Number) -> tuple[Item, ...]:
        """`launches` are those that are made, of the launch steps numbered as they stand."""
        self._made = {launch.step: launch for launch in launches}
        return self._bind(self._steps, "", 1, number, count())

    def dims(self, steps: Sequence[Step] | None = None, counter: str = "") -> Iterator[Dim]:
        """The dims that `bind` asks the numbers of."""
        for step in self._steps if steps is None else steps:
            if isinstance(step, Copy):
                yield from self._copied(step, counter)
            elif isinstance(step, ScanLoop):
                yield step.count
            inner = step.index if isinstance(step, ScanLoop) else counter
            for body in step.bodies:
                yield from self.dims(body, inner)

    def _bind(
        self,
        steps: Sequence[Step],
        counter: str,
        times: int,
        number: Number,
        launches: Iterator[int],
    ) -> tuple[Item, ...]:
        made: list[Item] = []
        for step in steps:
            if isinstance(step, LaunchStep):
                launch = self._made.get(next(launches))
                made += [] if launch is None else [launch]
            elif isinstance(step, Copy):
                made.append(self._move(step, counter, times, number))
            elif isinstance(step, ScanLoop):
                runs = number(step.count)
                body = self._bind(step.body, step.index, runs, number, launches)
                made.append(Nest((body,), times=runs))
            elif isinstance(step, Cond):
                bodies = (self._bind(b, counter, times, number, launches) for b in step.bodies)
                made.append(Nest(tuple(bodies), flag=self._index[step.predicate]))
        return tuple(made)

    def _copied(self, step: Copy, counter: str) -> tuple[Dim, ...]:
        """Offsets where the loop begins, their strides, bytes moved, bytes of both buffers."""
        offsets = step.source_offset, step.target_offset
        starts = (substitute(offset, {counter: 0}) for offset in offsets)
        factors = (coefficient_of(offset, counter) for offset in offsets)
        strides = (0 if factor is None else factor for factor in factors)
        buffers = (self._program.buffers[name] for name in (step.source, step.target))
        return (*starts, *strides, step.nbytes, *(b.type.nbytes for b in buffers))

    def _move(self, step: Copy, counter: str, times: int, number: Number) -> Move:
        begin, end, further, on, nbytes, has, room = map(number, self._copied(step, counter))
        for time in (0, times - 1) if times > 0 else ():
            check_copy(step, begin + time * further, end + time * on, nbytes, has, room)
        buffers = self._index[step.source], self._index[step.target]
        return Move(buffers, (begin, end), nbytes, (further, on))


def check_copy(step: Copy, begin: int, end: int, nbytes: int, has: int, room: int) -> None:
    """ArtifactError where a copy would leave one of its buffers."""
    if min(begin, end, nbytes) < 0 or begin + nbytes > has or end + nbytes > room:
        raise ArtifactError(
            f"step {step.name} copies what is outside its buffers",
            where=step.loc or step.name,
            facts=f"{nbytes} bytes from {begin} of {has} to {end} of {room}",
            fix="build the program again",
        )
