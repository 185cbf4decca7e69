"""Prepared: an executable at fixed sizes, with inputs and outputs of its own, to run many times.

On a GPU all inputs travel in one copy and the launches are one replay of a captured graph.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.program import ALIGNMENT
from .executable import Executable


class Prepared:
    """Inputs and outputs stay where they are, so that addresses can be captured."""

    def __init__(self, executable: Executable, shapes: Sequence[tuple[int, ...]]):
        program, device = executable.program, executable.device
        self._executable, self._device = executable, device
        buffers = [program.buffers[name] for name in program.inputs]
        nbytes = [
            int(np.prod(shape, dtype=np.int64)) * b.type.dtype.nbytes
            for shape, b in zip(shapes, buffers)
        ]
        starts = np.cumsum([0, *(-(-n // ALIGNMENT) * ALIGNMENT for n in nbytes)]).tolist()
        self._staging = np.zeros(max(starts[-1], 1), np.uint8)
        self._memory = device.allocate(len(self._staging), "the inputs of a prepared program")
        self.inputs: dict[str, np.ndarray] = {  # fill these, then run
            b.name: self._staging[at : at + n].view(b.type.dtype.numpy).reshape(shape)
            for b, shape, at, n in zip(buffers, shapes, starts, nbytes)
        }
        addresses = [self._memory.address + at for at in starts[:-1]]
        self._run, arrays = executable.fix(shapes, addresses)
        self._outputs = dict(zip(program.outputs, arrays))

    def run(self, values: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs in and start. The shapes are those that were prepared."""
        for name, array in self.inputs.items():
            array[...] = values[name]
        self._device.upload(self._memory, self._staging)
        self._run()

    def output(self, index: int) -> np.ndarray:
        """Output `index` of the last run, in host memory; waits for it."""
        return self._outputs[self._executable.program.outputs[index]].numpy()
