"""FixedRun: an executable at fixed sizes, with inputs and outputs of its own, to run many times.

On a GPU all inputs travel in one copy and the launches are one replay of a captured graph.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ..ir.program import ALIGNMENT
from .array import Array
from .device import Device, Memory, Place
from .executable import Executable

LEAST_SHARED = 1 << 20


class SharedMemory:
    """Memory that programs run one after the other all use, each from the start.

    It grows by doubling. Who took a piece before keeps it, so that captured addresses stay good.
    """

    def __init__(self, device: Device):
        self._device = device
        self._memory: Memory | None = None

    def take(self, nbytes: int, what: str) -> Memory:
        """At least `nbytes`; other takers use the same."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = 2 * self._memory.nbytes if self._memory is not None else LEAST_SHARED
            self._memory = self._device.allocate(max(nbytes, grown), what)
        return self._memory


class FixedRun:
    """Inputs and outputs stay where they are, so that addresses can be captured.

    Outputs are good until the next run of whatever shares `memory`.
    """

    def __init__(
        self,
        executable: Executable,
        shapes: Sequence[tuple[int, ...]],
        memory: SharedMemory | None = None,
    ):
        program, device = executable.program, executable.device
        self._device, self._faults = device, executable.faults
        memory = memory or SharedMemory(device)
        inputs = [program.buffers[name] for name in program.inputs]
        outputs = executable.output_types(shapes)
        sizes = [b.type.dtype.nbytes * prod(s) for s, b in zip(shapes, inputs)]
        self._inputs_end, starts = _place(sizes, 0)
        end, output_starts = _place([t.nbytes * prod(s) for s, t in outputs], self._inputs_end)
        self._staging = np.zeros(max(self._inputs_end, 1), np.uint8)
        self._memory = memory.take(end, "inputs and outputs of prepared programs")
        base = self._memory.address
        self.inputs: dict[str, np.ndarray] = {  # fill these, then run
            b.name: self._staging[at : at + n].view(b.type.dtype.numpy).reshape(shape)
            for b, shape, at, n in zip(inputs, shapes, starts, sizes)
        }
        self._outputs = [
            Array.over(Place(base + at, t.nbytes * prod(s), self._memory), s, t, device)
            for (s, t), at in zip(outputs, output_starts)
        ]
        addresses = [base + at for at in starts]
        # starts with what the inputs hold there already
        self.start = executable.fix(shapes, addresses, self._outputs)

    def run(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs in and start. The shapes are those that were prepared."""
        for name, array in self.inputs.items():
            array[...] = values[name]
        if self._inputs_end:
            self._device.upload(self._memory, self._staging)
        self.start()

    def output(self, index: int) -> np.ndarray:
        """Output `index` of the last run, in host memory; waits for it.

        IndexOutOfRange and DivisionByZero as `Executable.__call__`.
        """
        array = self._outputs[index].numpy()
        self._faults.raise_first()
        return array


def _place(sizes: Sequence[int], start: int) -> tuple[int, list[int]]:
    """Pieces of these sizes one after the other, aligned. -> the end, and where each begins."""
    starts = []
    for nbytes in sizes:
        starts.append(start)
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return start, starts
