"""Compiled code on an NVIDIA GPU: binaries loaded, launches made, launches captured as graphs."""

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..ir import abi
from ..ir.errors import DeviceError
from ..ir.fork_lock import tell_after_fork
from ..ir.plan import aligned
from ..ir.program import Kernel, Program
from .device import Launch

ALIGNMENT = 16  # bytes; kernels are compiled for pointers that are multiples
STATIC_SHARED = 48 * 1024  # a kernel that wants more shared memory must say so


class _Library:
    """A loaded binary; unloaded when the last reference goes. cuda-core's own stays for ever."""

    def __init__(self, blob: bytes, device: Any):
        self._device = device
        self._handle = device.check(device.driver.cuLibraryLoadData(blob, [], [], 0, [], [], 0))
        self._finalizer = weakref.finalize(self, device.unload, self._handle)
        self._finalizer.atexit = False  # the driver takes everything back by itself

    def kernel(self, name: str) -> Any:
        """One of its kernels. It does not keep the library."""
        device = self._device
        found = device.check(device.driver.cuLibraryGetKernel(self._handle, name.encode()))
        return device.core.Kernel.from_handle(int(found))


class CudaModule:
    """The kernels of a program, loaded."""

    def __init__(self, program: Program, device: Any):
        self._device = device
        self._libraries = {name: _Library(blob, device) for name, blob in program.blobs.items()}
        self._kernels = {
            name: self._prepared(self._libraries[kernel.binary].kernel(kernel.name), kernel)
            for name, kernel in program.kernels.items()
        }
        self._configs: dict[tuple, Any] = {}

    def _prepared(self, function: Any, kernel: Kernel) -> Any:
        if kernel.shared_bytes > STATIC_SHARED:
            driver, device = self._device.driver, self._device
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device.check(
                driver.cuKernelSetAttribute(
                    limit, kernel.shared_bytes, function.handle, driver.CUdevice(device.index)
                )
            )
        return function

    def plan(self, launches: Sequence[Launch]) -> "CudaPlan":
        """Prepare `launches`."""
        prepared = []
        for launch in launches:
            kernel = launch.kernel
            grid = (*launch.grid, *(1,) * (3 - len(launch.grid)))
            scratch = kernel.scratch_bytes * grid[0] * grid[1] * grid[2]
            types = kernel.options[abi.DIMS]
            dims = [
                np.int32(value) if kind == "i32" else np.int64(value)
                for value, kind in zip(launch.dims, types, strict=True)
            ]
            config = self._config(kernel, grid)
            function = self._kernels[kernel.name]
            prepared.append((function, config, launch.buffers, dims, kernel, scratch))
        return CudaPlan(self._device, prepared, keep=self)

    def _config(self, kernel: Kernel, grid: tuple[int, ...]) -> Any:
        pdl = bool(kernel.options.get(abi.PDL))
        key = (grid, kernel.num_warps, kernel.shared_bytes, pdl)
        if key not in self._configs:
            self._configs[key] = self._device.core.LaunchConfig(
                grid=grid,
                block=(32 * kernel.num_warps, 1, 1),
                shmem_size=kernel.shared_bytes,
                programmatic_stream_serialization=pdl,
            )
        return self._configs[key]


class CudaPlan:
    """Launches with all but the addresses fixed."""

    def __init__(self, device: Any, launches: list[tuple], keep: Any = None):
        self._device, self._launches, self._keep = device, launches, keep  # `keep` stays loaded
        # each has scratch memory of its own: the next may start to write before one has ended
        *begins, size = accumulate((aligned(item[-1]) for item in launches), initial=0)
        self._scratch = device.allocate(size, "kernels' scratch") if size else None
        base = self._scratch.address if self._scratch is not None else 0
        self._scratch_at = [base + b if it[-1] else 0 for b, it in zip(begins, launches)]
        self._used = np.unique([b for item in launches for b in item[2]]).astype(int)

    def _check(self, addresses: np.ndarray) -> list[int]:
        used = addresses[self._used]
        if (used % ALIGNMENT).any():
            odd = int(used[used % ALIGNMENT != 0][0])
            raise DeviceError(
                "an array given to a kernel is not aligned",
                where=self._device.name,
                facts=f"its address is {odd:#x}, kernels need a multiple of {ALIGNMENT}",
                fix="pass a copy (x.clone()) in place of a slice",
            )
        return addresses.tolist()

    def _arguments(self, at: list[int], item: tuple, scratch: int) -> list:
        _, _, buffers, dims, kernel, _ = item
        # Triton's kernels end in pointers of their own: scratch memory first, then unused ones
        hidden = [scratch, *(0,) * kernel.options.get(abi.HIDDEN, 0)]
        return [*(at[b] for b in buffers), *dims, *hidden[: kernel.options.get(abi.HIDDEN, 0)]]

    def _launch_all(self, stream: Any, at: list[int]) -> None:
        launch = self._device.core.launch
        for item, scratch in zip(self._launches, self._scratch_at):
            launch(stream, item[1], item[0], *self._arguments(at, item, scratch))

    def run(self, addresses: np.ndarray) -> None:
        """Make the launches; returns before they are done."""
        self._device.enter()
        self._launch_all(self._device.stream, self._check(addresses))

    def profile(self, addresses: np.ndarray) -> list[float]:
        """Make each launch alone, between two events. -> seconds, one a launch."""
        device = self._device
        device.enter()
        at = self._check(addresses)
        options = device.core.EventOptions(timing_enabled=True)
        times = []
        for item, scratch in zip(self._launches, self._scratch_at):
            device.synchronize()
            start = device.stream.record(options=options)
            device.core.launch(device.stream, item[1], item[0], *self._arguments(at, item, scratch))
            stop = device.stream.record(options=options)
            stop.sync()
            times.append((stop - start) / 1000)
        return times

    def capture(self, addresses: np.ndarray) -> Callable[[], None]:
        """The launches as one captured graph. -> a function that replays it."""
        device = self._device
        device.enter()
        at = self._check(addresses)
        builder = device.stream.create_graph_builder()
        builder.begin_building()
        self._launch_all(builder, at)
        graph = builder.end_building().complete()
        graph.upload(device.stream)
        return _Replay(graph, self, device)


class _Replay:
    """A captured graph, and the plan that owns what it uses."""

    def __init__(self, graph: Any, plan: CudaPlan, device: Any):
        self._graph, self._plan, self._device = graph, plan, device  # freed in this order
        tell_after_fork(self)

    def after_fork(self) -> None:
        """In a forked process: the graph is the parent's."""
        self._device.abandon(self._graph)

    def __call__(self) -> None:
        self._device.enter()
        self._graph.launch(self._device.stream)
