"""Loop kernels with data on the GPU of this machine: what the interpreter does, for real."""

from types import SimpleNamespace

import numpy as np

from tilewright.codegen.backend import COUNTERS
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel, workspace_types
from tilewright.ir import abi
from tilewright.ir.dim import evaluate
from tilewright.ir.program import Kernel
from tilewright.ir.target import get_target
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.cuda_module import CudaModule
from tilewright.runtime.device import Launch

from .harness import Case, flat


class Card:
    """Compiles and launches cases. See Interpreter."""

    is_card = True

    def __init__(self):
        self.device = CudaDevice()
        self.target = get_target(self.device.target)

    def close(self) -> None:
        self.device.synchronize()

    def run(self, case: Case, schedule) -> list[np.ndarray]:
        """Every parameter after the launches of `schedule`, floats in float64."""
        spaces = workspace_types(case.kernel, schedule)
        places = {name: number for number, name in enumerate([*range(len(case.arrays)), *spaces])}
        memories = [self.placed(a) for a in case.arrays]
        for name, type in spaces.items():
            shape = [evaluate(d, case.sizes) for d in type.shape]
            size = int(np.prod(shape, dtype=int)) * type.dtype.nbytes
            fill = 0 if name == COUNTERS else 255  # NaN, where floats
            memories.append(self.placed(np.full(size, fill, np.uint8)))
        blobs, kernels, launches = {}, {}, []
        for emitted in emit_kernel(case.kernel, "kernel", schedule, self.target):
            made = compile_kernel(emitted, self.target)
            blobs[emitted.name] = made.binary
            options = {
                abi.PDL: emitted.pdl,
                abi.HIDDEN: made.hidden,
                abi.DIMS: [kind for _, kind in emitted.signature[len(emitted.buffers) :]],
            }
            kernel = Kernel(
                name=made.entry,
                language="triton",
                key="",
                source="",
                binary=emitted.name,
                template="",
                num_warps=made.num_warps,
                shared_bytes=made.shared_bytes,
                scratch_bytes=made.scratch_bytes,
                options=options,
            )
            kernels[made.entry] = kernel
            grid = tuple(evaluate(d, case.sizes) for d in emitted.grid)
            if 0 not in grid:
                buffers = tuple(places[b] for b in emitted.buffers)
                dims = tuple(evaluate(d, case.sizes) for d in emitted.dims)
                launches.append(Launch(len(launches), kernel, buffers, dims, grid))
        module = CudaModule(SimpleNamespace(blobs=blobs, kernels=kernels), self.device)
        if launches:
            addresses = np.array([m.address for m in memories], np.int64)
            module.plan(launches).run(addresses)
        if COUNTERS in spaces:
            raw = np.empty(memories[places[COUNTERS]].nbytes, np.uint8)
            self.device.download(memories[places[COUNTERS]], raw)
            assert not raw.any(), "the last program sets a counter back"
        results = []
        for memory, array in zip(memories, case.arrays):
            raw = np.empty(array.nbytes, np.uint8)
            self.device.download(memory, raw)
            results.append(flat(raw.view(array.dtype)))
        return results

    def placed(self, array: np.ndarray):
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        memory = self.device.allocate(raw.nbytes, "an array of a test")
        self.device.upload(memory, raw)
        return memory
