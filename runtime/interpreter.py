"""Runs the steps of a program that is not launches alone, one after the other, on any device.

Launches that follow each other are bound together and run as one plan of the device, as in a
program of nothing else. What depends on a size that a step binds is bound, and its memory
allocated, when the size is there.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from ..ir.dim import Dim, symbols_of
from ..ir.errors import ArtifactError
from ..ir.host_functions import find_functions
from ..ir.indexing import coefficient_of
from ..ir.program import Buffer, Program
from ..ir.steps import (
    BindSize,
    Collective,
    Cond,
    Copy,
    FunctionCall,
    HostCall,
    LaunchStep,
    LibraryCall,
    ScanLoop,
    Step,
    While,
    late_symbols,
    walk,
)
from ..ir.target import get_target
from .binding import Dims, Launches
from .blocks import Blocks, check_copy
from .calls import Returned, checked_size, find_routines, size_binder
from .communicator import Communicator, communicated, find_groups
from .device import Device, Launch, LaunchPlan, Module, Place
from .dlpack import CPU, View
from .profile import StepProfile, of_launches
from .step_plan import Frame, Run, StepPlan

MAX_PLANS = 64  # of one group of launches, for sizes that changed; the least recently used go first

Traced = tuple[Step, dict[str, int], dict[str, np.ndarray]]  # a step, sizes, what it has written


class Interpreter:
    """The steps of one program, compiled for one device into functions of a frame."""

    def __init__(
        self,
        program: Program,
        module: Module,
        device: Device,
        communicators: Mapping[str, Communicator],
    ):
        self.program, self.device, self._module = program, device, module
        self._target = get_target(program.target)
        self._index = {name: i for i, name in enumerate(program.buffers)}
        steps = tuple(walk(program.steps))
        calls = {kind: [s.function for s in steps if isinstance(s, kind)] for kind in _FIND}
        self._functions = {kind: _FIND[kind](program.name, calls[kind]) for kind in _FIND}
        groups = [s.group for s in steps if isinstance(s, Collective)]
        self._groups = find_groups(program.name, groups, communicators)
        self._run = self._compile(program.steps)
        self._outputs = {self._index[name] for name in program.outputs}

    def plan(self, values: Mapping[str, int]) -> StepPlan:
        """The program at the sizes that are known when a run begins."""
        return StepPlan(self._run, values, self._outputs)

    def trace(
        self, values: Mapping[str, int], addresses: np.ndarray, names: Collection[str]
    ) -> Iterator[Traced]:
        """Run the program's own steps one at a time: each with copies of what it wrote in `names`.

        What steps inside of it have written is its own.
        """
        frame = Frame(dict(values), addresses.copy())
        for step in self.program.steps:
            self._compile((step,))(frame)
            self.device.synchronize()
            written = dict.fromkeys(n for s in walk((step,)) for n in s.writes if n in names)
            buffers = [self._buffer(name) for name in written]
            dims = self._dims(d for b in buffers for d in b.type.shape)
            found = {b.name: self._host(b, dims, frame, copied=True) for b in buffers}
            yield step, dict(frame.values), found

    # ---- compiling ---------------------------------------------------------------------------

    def _compile(self, steps: Sequence[Step], in_blocks: bool = True) -> Run:
        def is_planned(step: Step) -> bool:
            return isinstance(step, LaunchStep) or (in_blocks and self._is_planned(step))

        runs: list[Run] = []
        for is_known, group in groupby(steps, is_planned):
            if is_known:
                runs.append(self._planned(tuple(group)))
            else:
                runs += [_KINDS[type(step)](self, step) for step in group]

        def run(frame: Frame) -> None:
            for each in runs:
                each(frame)

        return run

    def _is_planned(self, step: Step, counter: str = "") -> bool:
        """Whether a device's plan may hold it: all its sizes are known when the plan is made.

        The offsets of a copy may follow the counter of the loop around it.
        """
        if not self._module.takes_blocks or not isinstance(step, (LaunchStep, *_BLOCKS)):
            return False
        if not self.program.late_buffers.isdisjoint((*step.reads, *step.writes)):
            return False
        symbols = frozenset().union(*map(symbols_of, step.dims))
        if isinstance(step, Copy):
            offsets = (step.source_offset, step.target_offset)
            is_even = all(coefficient_of(offset, counter) is not None for offset in offsets)
            symbols -= {counter} if is_even and counter not in symbols_of(step.nbytes) else set()
        inner = step.index if isinstance(step, ScanLoop) else counter
        return symbols.isdisjoint(self.program.late_symbols) and all(
            self._is_planned(each, inner) for body in step.bodies for each in body
        )

    def _planned(self, steps: tuple[Step, ...]) -> Run:
        every = tuple(walk(steps))
        launches = Launches(
            self.program, [s for s in every if isinstance(s, LaunchStep)], self._index
        )
        late = self._late(name for step in every for name in step.writes)
        blocks = Blocks(self.program, steps, self._index)
        sizes = [d for b in late for d in b.type.shape]
        dims = self._dims([*launches.dims, *blocks.dims(), *sizes])
        launches.place(dims.place)
        plans: OrderedDict[tuple[int, ...], tuple[tuple[Launch, ...], LaunchPlan]] = OrderedDict()
        is_plain = len(launches.steps) == len(every)

        def run(frame: Frame) -> None:
            if frame.profile is not None and not is_plain:
                self._compile(steps, in_blocks=False)(frame)
                return
            key = tuple([frame.values[name] for name in dims.names])
            if key not in plans:
                numbers = dims.numbers(frame.values)
                bound = launches.bind(numbers, frame.values)
                made = blocks.bind(bound, lambda dim: numbers[dims.place[dim]])
                plans[key] = bound, self._module.plan(made)
                if len(plans) > MAX_PLANS:
                    plans.popitem(last=False)
            plans.move_to_end(key)
            if late:
                self._allocate(late, dims, frame)
            bound, plan = plans[key]
            if frame.profile is None:
                plan.run(frame.addresses)
            else:
                seconds = plan.profile(frame.addresses)
                frame.profile += of_launches(launches.steps, bound, seconds, self._target)

        return run

    def _copy(self, step: Copy) -> Run:
        source, target = self._buffer(step.source), self._buffer(step.target)
        late = self._late([step.target])
        sizes = (source.type.nbytes, target.type.nbytes)
        dims = self._dims([*step.dims, *sizes, *target.type.shape])
        places = [
            dims.place[d] for d in (step.source_offset, step.target_offset, step.nbytes, *sizes)
        ]
        at, to = self._index[step.source], self._index[step.target]

        def run(frame: Frame) -> None:
            if late:
                self._allocate(late, dims, frame)
            numbers = dims.numbers(frame.values)
            begin, end, nbytes, has, room = (numbers[place] for place in places)
            check_copy(step, begin, end, nbytes, has, room)
            addresses = frame.addresses
            self.device.copy(int(addresses[to]) + end, int(addresses[at]) + begin, nbytes)

        return self._timed(step, run)

    def _call(self, step: FunctionCall) -> Run:
        function = self._functions[type(step)][step.function]
        inputs, outputs = (
            [self._buffer(n) for n in names] for names in (step.inputs, step.outputs)
        )
        dims = self._dims(d for b in inputs for d in b.type.shape)
        returned = Returned(step, self.program)
        own = isinstance(step, HostCall)  # a user's function may keep or change what it is given

        def run(frame: Frame) -> None:
            arrays = [self._host(buffer, dims, frame, copied=own) for buffer in inputs]
            results = returned.of(function, arrays, frame.values)
            for buffer, array in zip(outputs, results):
                self._store(buffer, array, frame)

        return self._timed(step, run)

    def _bind(self, step: BindSize) -> Run:
        binder = size_binder(step, self.program)

        def run(frame: Frame) -> None:
            number = self._scalar(step.source, np.int64, frame)
            frame.values[step.symbol] = checked_size(step, binder, int(number))

        return self._timed(step, run)

    def _collective(self, step: Collective) -> Run:
        source, target = self._buffer(step.source), self._buffer(step.target)
        dims = self._dims((*source.type.shape, *target.type.shape))
        group = self._groups[step.group]

        def run(frame: Frame) -> None:
            result = communicated(step, group, self._host(source, dims, frame))
            shape = _shape(target, dims, frame)
            if result.shape != shape:
                raise ArtifactError(
                    f"step {step.name} does not fit the group {step.group}",
                    where=step.loc or step.name,
                    facts=f"{step.operation} over {group.size} processes gives"
                    f" {list(result.shape)}, {step.target} is {list(shape)}",
                    fix="run it in a group of the size that it was built for",
                )
            self._store(target, result, frame)

        return self._timed(step, run)

    def _cond(self, step: Cond) -> Run:
        then, otherwise = self._compile(step.then), self._compile(step.otherwise)

        def run(frame: Frame) -> None:
            (then if self._is_true(step.predicate, frame) else otherwise)(frame)

        return run

    def _while(self, step: While) -> Run:
        test, body = self._compile(step.test), self._compile(step.body)

        def run(frame: Frame) -> None:
            test(frame)
            while self._is_true(step.predicate, frame):
                body(frame)
                test(frame)

        return run

    def _scan(self, step: ScanLoop) -> Run:
        inner = late_symbols((step,))
        late = self._late(name for each in walk(step.body) for name in each.writes)
        late = [b for b in late if inner.isdisjoint(b.type.symbols)]  # which may run no time
        body = self._compile(step.body)
        dims = self._dims([step.count, *(d for b in late for d in b.type.shape)])

        def run(frame: Frame) -> None:
            self._allocate(late, dims, frame)
            for i in range(dims.numbers(frame.values)[0]):
                frame.values[step.index] = i
                body(frame)

        return run

    # ---- what steps share --------------------------------------------------------------------

    def _dims(self, dims: Iterable[Dim]) -> Dims:
        return Dims(self.program, dims)

    def _buffer(self, name: str) -> Buffer:
        return self.program.buffers[name]

    def _late(self, names: Iterable[str]) -> list[Buffer]:
        late = self.program.late_buffers
        return [self._buffer(name) for name in dict.fromkeys(names) if name in late]

    def _timed(self, step: Step, run: Run) -> Run:
        kind, what = type(step).__name__, getattr(step, "function", step.name)

        def timed(frame: Frame) -> None:
            if frame.profile is None:
                run(frame)
                return
            self.device.synchronize()
            start = time.perf_counter()
            run(frame)
            self.device.synchronize()
            took = time.perf_counter() - start
            dims = self._dims((step.traffic, step.operations))  # here: most are never profiled
            numbers = dims.numbers(frame.values)
            moved, made = numbers[dims.place[step.traffic]], numbers[dims.place[step.operations]]
            frame.profile.append(
                StepProfile(step.name, what, kind, step.loc, took, moved, made, self._target)
            )

        return timed

    def _allocate(self, buffers: Iterable[Buffer], dims: Dims, frame: Frame) -> None:
        """Memory for late buffers, unless they have it at this size already."""
        for buffer in buffers:
            self._place(buffer, _shape(buffer, dims, frame), frame)

    def _place(self, buffer: Buffer, shape: tuple[int, ...], frame: Frame) -> None:
        at = self._index[buffer.name]
        if at not in frame.late or frame.late[at][1] != shape:
            nbytes = prod(shape) * buffer.type.dtype.nbytes
            memory = self.device.allocate(nbytes, f"{buffer.role} {buffer.name}")
            frame.late[at] = memory, shape
            frame.addresses[at] = memory.address

    def _host(
        self, buffer: Buffer, dims: Dims, frame: Frame, *, copied: bool = False
    ) -> np.ndarray:
        """A buffer's content as an array that is not to be changed, or a copy."""
        shape = _shape(buffer, dims, frame)
        address = int(frame.addresses[self._index[buffer.name]])
        if self.device.dlpack_device == CPU and not copied:
            array = View(address, shape, None, buffer.type.dtype, CPU, None).numpy()
            array.flags.writeable = False
            return array
        array = np.empty(shape, buffer.type.dtype.numpy)
        self.device.download(Place(address, array.nbytes), array)
        return array

    def _store(self, buffer: Buffer, array: np.ndarray, frame: Frame) -> None:
        if buffer.name in self.program.late_buffers:
            self._place(buffer, array.shape, frame)
        address = int(frame.addresses[self._index[buffer.name]])
        self.device.upload(Place(address, array.nbytes), np.ascontiguousarray(array))

    def _is_true(self, name: str, frame: Frame) -> bool:
        return bool(self._scalar(name, np.bool_, frame))

    def _scalar(self, name: str, dtype: type, frame: Frame) -> Any:
        """The one element of a buffer."""
        found = np.zeros(1, dtype)
        address = int(frame.addresses[self._index[name]])
        self.device.download(Place(address, found.nbytes), found)
        return found[0]


def _shape(buffer: Buffer, dims: Dims, frame: Frame) -> tuple[int, ...]:
    numbers = dims.numbers(frame.values)
    return tuple(numbers[dims.place[d]] for d in buffer.type.shape)


# what a device's plan may hold beside launches: what ends soon, since nothing interrupts a plan
_BLOCKS = (Copy, Cond, ScanLoop)
_FIND = {HostCall: find_functions, LibraryCall: find_routines}
_KINDS: dict[type[Step], Callable[[Interpreter, Step], Run]] = {
    Copy: Interpreter._copy,  # type: ignore[dict-item]
    HostCall: Interpreter._call,  # type: ignore[dict-item]
    LibraryCall: Interpreter._call,  # type: ignore[dict-item]
    BindSize: Interpreter._bind,  # type: ignore[dict-item]
    Collective: Interpreter._collective,  # type: ignore[dict-item]
    Cond: Interpreter._cond,  # type: ignore[dict-item]
    While: Interpreter._while,  # type: ignore[dict-item]
    ScanLoop: Interpreter._scan,  # type: ignore[dict-item]
}
