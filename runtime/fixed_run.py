"""FixedRun: an executable at fixed sizes, with inputs and outputs of its own, to run many times.

On a GPU all inputs travel in one copy and the launches are one replay of a captured graph.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ..ir.program import ALIGNMENT
from .array import Array
from .device import Device, Done, Memory, Place
from .executable import Executable

LEAST_SHARED = 1 << 20


class SharedMemory:
    """Memory that programs run one after the other all use, each from the start.

    It grows by doubling. Who took a piece before keeps it, so that captured addresses stay good.
    On the host there are two pieces, taken in turn: one is filled while the other is copied.
    """

    def __init__(self, device: Device):
        self._device = device
        self._memory: Memory | None = None
        self._staging: tuple[np.ndarray, np.ndarray] | None = None
        self._turn = 0
        self._sent: list[Done] = [device.synchronize] * 2

    def take(self, nbytes: int, what: str) -> Memory:
        """At least `nbytes`; other takers use the same."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = 2 * self._memory.nbytes if self._memory is not None else LEAST_SHARED
            self._memory = self._device.allocate(max(nbytes, grown), what)
        return self._memory

    def take_staging(self, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Host memory of at least `nbytes`, twice; other takers use the same."""
        if self._staging is None or len(self._staging[0]) < nbytes:
            grown = 2 * len(self._staging[0]) if self._staging is not None else LEAST_SHARED
            first, second = (self._device.host_memory(max(nbytes, grown)) for _ in range(2))
            self._staging = first, second
        return self._staging

    def begin_turn(self) -> int:
        """Which of the two pieces of host memory is to be filled now; waits until it is free."""
        self._turn = 1 - self._turn
        self._sent[self._turn]()
        return self._turn

    def end_turn(self, sent: Done) -> None:
        """`sent` says when what was filled is free again."""
        self._sent[self._turn] = sent


class FixedRun:
    """Inputs and outputs stay where they are, so that addresses can be captured.

    Outputs are good until the next run of whatever shares `memory`. Inputs and outputs named in
    `placed` lie there instead, and are neither copied in nor written over by others.
    """

    def __init__(
        self,
        executable: Executable,
        shapes: Sequence[tuple[int, ...]],
        memory: SharedMemory | None = None,
        *,
        placed: Mapping[str, Memory] | None = None,
        captures: bool = True,
    ):
        program, device = executable.program, executable.device
        self._device, self._faults = device, executable.faults
        self._shared, placed = memory or SharedMemory(device), placed or {}
        inputs = [program.buffers[name] for name in program.inputs]
        outputs = list(zip(program.outputs, executable.output_types(shapes), strict=True))
        sizes = [b.type.dtype.nbytes * prod(s) for s, b in zip(shapes, inputs)]
        self._inputs_end, starts = _place(
            [0 if b.name in placed else n for n, b in zip(sizes, inputs)], 0
        )
        output_sizes = [0 if n in placed else t.nbytes * prod(s) for n, (s, t) in outputs]
        end, output_starts = _place(output_sizes, self._inputs_end)
        self._memory = self._shared.take(end, "inputs and outputs of prepared programs")
        self._staging = self._shared.take_staging(self._inputs_end)
        base = self._memory.address
        self._inputs: list[dict[str, np.ndarray]] = [
            {
                b.name: piece[at : at + n].view(b.type.dtype.numpy).reshape(shape)
                for b, shape, at, n in zip(inputs, shapes, starts, sizes)
                if b.name not in placed
            }
            for piece in self._staging
        ]
        self._outputs = [
            Array.over(
                placed.get(name, Place(base + at, t.nbytes * prod(s), self._memory)), s, t, device
            )
            for (name, (s, t)), at in zip(outputs, output_starts)
        ]
        self.addresses = [  # of the inputs
            placed[b.name].address if b.name in placed else base + at
            for b, at in zip(inputs, starts)
        ]
        # starts with what the inputs hold there already
        self.start = executable.fix(shapes, self.addresses, self._outputs, captures=captures)

    def run(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs in and start. The shapes are those that were prepared."""
        turn = self._shared.begin_turn()
        for name, array in self._inputs[turn].items():
            array[...] = values[name]
        if self._inputs_end:
            staging = self._staging[turn][: self._inputs_end]
            self._shared.end_turn(self._device.send(self._memory, staging))
        self.start()

    def output(self, index: int) -> np.ndarray:
        """Output `index` of the last run, in host memory; waits for it.

        IndexOutOfRange and DivisionByZero as `Executable.__call__`.
        """
        array = self._outputs[index].numpy()
        self._faults.raise_first()
        return array

    def fetch(self, index: int, array: np.ndarray) -> Done:
        """Begin to copy output `index` of the last run into `array`, which is of `host_memory`.

        What runs later is not waited for. Faults of the data are left to the executable.
        """
        output = self._outputs[index]
        return self._device.fetch(Place(output.address, output.nbytes), array)


def _place(sizes: Sequence[int], start: int) -> tuple[int, list[int]]:
    """Pieces of these sizes one after the other, aligned. -> the end, and where each begins."""
    starts = []
    for nbytes in sizes:
        starts.append(start)
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return start, starts
