"""Executable: a program with its weights on a device, called with arrays.

One run at a time: the arena and the states belong to the executable, so calls from several threads
take turns.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..ir.binder import ArgumentSpec, Binder
from ..ir.errors import DimError, ShapeError
from ..ir.fork_lock import ForkLock, tell_after_fork
from ..ir.program import Buffer, Program
from ..ir.target import get_target
from ..ir.types import DType
from .array import Array
from .binding import Binding, Sizes
from .check_program import check_program
from .communicator import Communicator
from .cpu import host_array
from .device import Device, Launch, LaunchPlan, Memory
from .dlpack import CPU, View, view_of
from .fault_records import Faults
from .inputs import check_inputs, on_device
from .interpreter import Interpreter, Traced
from .place_weights import place_counters, place_states, place_weights
from .profile import Profile, of_launches, of_steps
from .step_plan import StepPlan

MAX_BINDINGS = 256  # sizes whose launches are kept ready; the least recently used go first

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclass
class _Bound:
    """Launches for one set of shapes, and the addresses that they are run with."""

    binding: Binding
    plan: LaunchPlan
    addresses: np.ndarray  # uint64, one a buffer; inputs and outputs are patched at each call
    arena: Memory | None = None  # the arena that the addresses of temps point into


class Executable:
    """Runs a program: `outputs = exe(*inputs)`.

    `weights` maps names to arrays; those on the device that lie well are used in place, unless
    `borrow_weights` is False: then each is copied, and may change afterwards. `sizes` gives
    symbols that no input determines, such as `pages`. `states` gives first values of states, which
    otherwise begin as zeros. `communicators` gives this process's place in each group of processes
    that the program names.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Any],
        device: Device,
        *,
        sizes: Mapping[str, int] | None = None,
        states: Mapping[str, Any] | None = None,
        borrow_weights: bool = True,
        communicators: Mapping[str, Communicator] | None = None,
    ):
        check_program(program)
        self.program, self.device = program, device
        self.sizes = dict(sizes or {})
        self._lock = ForkLock()
        self._sizes = Sizes(program)
        self._buffers = tuple(program.buffers.values())
        self._inputs = tuple(program.buffers[name] for name in program.inputs)
        specs = [ArgumentSpec(b.name, b.type.shape) for b in self._inputs]
        known = {n: s for n, s in program.symbols.items() if n not in program.late_symbols}
        self._binder = Binder(specs, known)
        self._input_at = tuple(self._sizes.index[name] for name in program.inputs)
        # written by a kernel: an output of its own, where it is first named. The others are copied
        # after the run: inputs, weights and states that are outputs too, and repeated outputs.
        self._outputs = tuple(
            (
                self._sizes.index[name],
                program.buffers[name].role == "output"
                and (name not in program.outputs[:place] or name in program.late_buffers),
            )
            for place, name in enumerate(program.outputs)
        )
        self._late = tuple(n for n in program.outputs if n in program.late_buffers)
        self._module = device.load(program)
        self._interpreter = None
        if not program.only_launches:
            groups = communicators or {}
            self._interpreter = Interpreter(program, self._module, device, groups)
        self._fixed = np.zeros(len(self._buffers), np.uint64)
        self._weights = place_weights(program, weights, device, borrow=borrow_weights)
        self._states = place_states(program, states or {}, self.sizes, device)
        self._counters = place_counters(program, device)
        for name, array in {**self._weights, **self._states, **self._counters}.items():
            self._fixed[self._sizes.index[name]] = array.address
        self.faults = Faults(program, device)
        for name, address in self.faults.places.items():
            self._fixed[self._sizes.index[name]] = address
        self._arena: Memory | None = None
        self._bound: OrderedDict[Shapes, _Bound] = OrderedDict()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """In a forked process: what another thread's unfinished run has found is not told here."""
        if self.device.dlpack_device == CPU:
            self.faults.forget()

    # ---- running -----------------------------------------------------------------------------

    def __call__(
        self,
        *inputs: Any,
        out: Sequence[Any] | None = None,
        consumer: int | None = None,
        make: Callable[[Shape, DType], View] | None = None,
    ) -> list[Any]:
        """Run with arrays in the program's order. -> new arrays, or `out` filled.

        ShapeError lists every argument of a wrong rank or dtype, DimError every size that does not
        fit; IndexOutOfRange and DivisionByZero say which data the program has no result for. States
        are updated in place. When this returns the device is done; or, with the stream `consumer`
        on which inputs and outputs are used from then on, that stream will wait for it, unless the
        program has data to check. `make` makes the new arrays, in memory of another library.
        """
        self.device.enter()
        stream = self.device.dlpack_stream
        views = [view_of(array, stream) for array in inputs]
        check_inputs(self.program.name, self._inputs, views)
        with self._lock:
            bound, kept = self._bind_to(views)
            results = self._results(bound, out, make)
            bound.plan.run(bound.addresses)
            if self._late:
                results = self._late_results(bound, results)
            self._copy_out(bound, results)
            # the inputs are the caller's again when this returns: their owner may be a library with
            # a stream of its own, which would not wait for ours
            if consumer is None or self.program.checks:
                self.device.synchronize()
            else:
                self.device.hand_over(consumer)
            del kept
            self.faults.raise_first()
        return results if out is None else list(out)

    def _results(
        self,
        bound: _Bound,
        out: Sequence[Any] | None,
        make: Callable[[Shape, DType], View] | None = None,
    ) -> list[Any]:
        results: list[Any]
        if out is not None:
            results = list(self._check_out(bound, out))
        else:
            # one array where an output is named twice, none yet where its size is not known
            new: dict[int, Array | View | None] = {}
            for at, _ in self._outputs:
                if at not in new:
                    shape, buffer = bound.binding.shapes[at], self._buffers[at]
                    if shape is None:
                        new[at] = None
                    elif make is not None:
                        new[at] = make(shape, buffer.type.dtype)
                    else:
                        new[at] = self.new_array(buffer, shape)
            results = [new[at] for at, _ in self._outputs]
        for (at, is_own), array in zip(self._outputs, results):
            if is_own and array is not None:
                bound.addresses[at] = array.address
        return results

    def _late_results(self, bound: _Bound, results: Sequence[Any]) -> list[Any]:
        """`results` with the arrays whose sizes the run has bound."""
        assert isinstance(bound.plan, StepPlan)
        made = {
            at: Array.over(memory, shape, self._buffers[at].type.dtype, self.device)
            for at, (memory, shape) in bound.plan.take_late().items()
        }
        return [made.get(at, array) for (at, _), array in zip(self._outputs, results)]

    def _require_known_sizes(self, what: str) -> None:
        if self._late:
            raise DimError(
                f"{what} needs the sizes of all outputs beforehand",
                where=self.program.name,
                facts=f"only a run says how large {', '.join(self._late)} is",
                fix="call the program, which returns new arrays",
            )

    def _check_out(self, bound: _Bound, out: Sequence[Any]) -> list[View]:
        self._require_known_sizes("out")
        views = [view_of(array, self.device.dlpack_stream) for array in out]
        if len(views) != len(self._outputs):
            raise ShapeError(f"out has {len(views)} arrays, outputs are {len(self._outputs)}")
        wrong = []
        for view, (at, _) in zip(views, self._outputs):
            buffer, shape = self._buffers[at], bound.binding.shapes[at]
            fits = (view.shape, view.dtype) == (shape, buffer.type.dtype)
            if not fits or view.strides is not None or view.device != self.device.dlpack_device:
                wrong.append(
                    f"for {buffer.name}: {view.dtype}{list(view.shape)}, needed is a contiguous"
                    f" {buffer.type.dtype}{list(shape)} on {self.device.name}"
                )
        if wrong:
            raise ShapeError("out does not fit the outputs", facts="\n".join(wrong))
        return views

    def new_array(self, buffer: Buffer, shape: tuple[int, ...]) -> Array:
        """An array for the content of `buffer`, not filled."""
        if self.device.dlpack_device == CPU:
            host = host_array(shape, buffer.type.dtype.numpy, f"output {buffer.name}")
            return Array(shape, buffer.type.dtype, host)
        memory = self.device.allocate(_nbytes(shape, buffer), f"output {buffer.name}", brief=True)
        return Array(shape, buffer.type.dtype, device=self.device, memory=memory)

    def _copy_out(self, bound: _Bound, results: Sequence[Any]) -> None:
        for (at, is_own), array in zip(self._outputs, results):
            if not is_own:
                nbytes = _nbytes(bound.binding.shapes[at], self._buffers[at])
                self.device.copy(array.address, int(bound.addresses[at]), nbytes)

    # ---- binding -----------------------------------------------------------------------------

    def _bind(self, shapes: Shapes) -> _Bound:
        bound = self._bound.get(shapes)
        if bound is None:
            values = self._binder.bind(shapes, self.sizes)
            binding = self._sizes.bind(values)
            if self._interpreter is None:
                plan = self._module.plan(binding.launches)
            else:
                plan = self._interpreter.plan(values)
            bound = _Bound(binding, plan, self._fixed.copy())
            self._bound[shapes] = bound
            if len(self._bound) > MAX_BINDINGS:
                self._bound.popitem(last=False)
        else:
            self._bound.move_to_end(shapes)
        if bound.arena is None or bound.arena is not self._arena:
            arena = self._grow_arena(bound.binding.arena_bytes)
            base = np.uint64(arena.address)
            bound.addresses[bound.binding.temps] = bound.binding.offsets + base
            bound.arena = arena  # last: a process forked in the middle starts over
        return bound

    def _bind_to(self, views: Sequence[View]) -> tuple[_Bound, list[View | Memory]]:
        """Launches with the inputs' addresses, and what has to be kept while they run."""
        bound = self._bind(tuple(view.shape for view in views))
        kept = [on_device(v, b, self.device) for v, b in zip(views, self._inputs)]
        for at, item in zip(self._input_at, kept):
            bound.addresses[at] = item.address
        return bound, kept

    def _grow_arena(self, nbytes: int) -> Memory:
        if self._arena is not None and self._arena.nbytes >= nbytes:
            return self._arena
        self.device.synchronize()
        self._arena = None  # freed before the larger one is asked for
        for bound in self._bound.values():
            bound.arena = None
        self._arena = self.device.allocate(max(nbytes, 1), "the arena of temporary buffers")
        return self._arena

    def reserve(self, values: Mapping[str, int]) -> int:
        """Make the arena large enough for these sizes at once. -> its bytes."""
        with self._lock:
            return self._grow_arena(self._sizes.arena_bytes({**self.sizes, **values})).nbytes

    def launches(self, values: Mapping[str, int]) -> tuple[Launch, ...]:
        """The launches of a run with these sizes."""
        return self._sizes.bind({**self.sizes, **values}).launches

    def output_types(self, shapes: Sequence[Shape]) -> list[tuple[Shape, DType]]:
        """Shape and dtype of each output for inputs of these shapes."""
        self._require_known_sizes("output_types")
        with self._lock:
            bound = self._bind(tuple(map(tuple, shapes)))
        buffers = self._buffers
        return [(bound.binding.shapes[at], buffers[at].type.dtype) for at, _ in self._outputs]

    def fix(
        self,
        shapes: Sequence[Shape],
        addresses: Sequence[int],
        outputs: Sequence[Array],
        *,
        captures: bool = True,
    ) -> Callable[[], None]:
        """Bind to `shapes` with inputs at `addresses`. -> a function that fills `outputs`.

        On devices that can, it replays captured launches if it `captures`. The memory of the inputs
        and outputs must outlive it. Faults of the data are left to `self.faults`, which waits for
        the run.
        """
        with self._lock:
            bound = self._bind(tuple(map(tuple, shapes)))
            # a copy, whose addresses nobody patches
            bound = replace(bound, addresses=bound.addresses.copy())
            bound.addresses[list(self._input_at)] = addresses
            for (at, is_own), array in zip(self._outputs, outputs):
                if is_own:
                    bound.addresses[at] = array.address
            replay = bound.plan.capture(bound.addresses) if captures else None

        def run() -> None:  # refers to `bound`, and so keeps the arena that it was captured with
            with self._lock:
                if replay is not None:
                    replay()
                else:
                    bound.plan.run(bound.addresses)
                self._copy_out(bound, outputs)

        return run

    # ---- states ------------------------------------------------------------------------------

    @property
    def states(self) -> dict[str, Array]:
        """The states, in place: what is written into them is what the next run sees."""
        return dict(self._states)

    @property
    def weights(self) -> dict[str, Array]:
        """The weights where they lie: another executable on this device may share them."""
        return dict(self._weights)

    # ---- looking inside ----------------------------------------------------------------------

    def trace(self, *inputs: Any, names: Collection[str]) -> Iterator[Traced]:
        """Run the program's steps one at a time; of what each has written, the buffers `names`.

        Faults of the data are left to `self.faults`. States are updated in place.
        """
        views = [view_of(array, self.device.dlpack_stream) for array in inputs]
        check_inputs(self.program.name, self._inputs, views)
        interpreter = self._interpreter
        if interpreter is None:
            interpreter = Interpreter(self.program, self._module, self.device, {})
        with self._lock:
            bound, kept = self._bind_to(views)
            results = self._results(bound, None)
            yield from interpreter.trace(bound.binding.values, bound.addresses, names)
            del kept, results

    def profile(self, *inputs: Any, repeats: int = 5) -> Profile:
        """Time each launch and other step alone (median of `repeats` runs). States are updated."""
        views = [view_of(array, self.device.dlpack_stream) for array in inputs]
        check_inputs(self.program.name, self._inputs, views)
        with self._lock:
            bound, kept = self._bind_to(views)
            results = self._results(bound, None)
            runs = [bound.plan.profile(bound.addresses) for _ in range(repeats)]
            del kept, results
        if self._interpreter is not None:
            return Profile(of_steps(runs))  # type: ignore[arg-type]
        times = np.median(np.array(runs).reshape(repeats, -1), axis=0)
        steps, target = self._sizes.launches.steps, get_target(self.program.target)
        return Profile(of_launches(steps, bound.binding.launches, times.tolist(), target))


def _nbytes(shape: tuple[int, ...], buffer: Buffer) -> int:
    return prod(shape) * buffer.type.dtype.nbytes
