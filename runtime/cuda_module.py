"""Compiled code on an NVIDIA GPU: binaries loaded, launches made, launches captured as graphs.

A plan's arguments lie in one array, to which the driver is given pointers: a run fills in the
addresses at once and then makes one call of the driver a launch. Addresses that come again are
captured: the same tensors in a loop, and outputs in memory that was just given back.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
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
FEW_LAUNCHES = 3  # take no longer than the replay of a graph
MAX_REPLAYS = 4  # graphs of one plan that are kept; the least recently used go first


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
        return device.check(device.driver.cuLibraryGetKernel(self._handle, name.encode()))


class CudaModule:
    """The kernels of a program, loaded."""

    takes_blocks = False

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
                    limit, kernel.shared_bytes, function, driver.CUdevice(device.index)
                )
            )
        return function

    def plan(self, launches: Sequence[Launch]) -> "CudaPlan":
        """Prepare `launches`."""
        prepared = []
        for launch in launches:
            kernel = launch.kernel
            grid = (*launch.grid, *(1,) * (3 - len(launch.grid)))
            config = self._config(kernel, grid)
            prepared.append((self._kernels[kernel.name], config, launch))
        return CudaPlan(self._device, prepared, keep=self)

    def _config(self, kernel: Kernel, grid: tuple[int, ...]) -> Any:
        pdl = bool(kernel.options.get(abi.PDL))
        key = (grid, kernel.num_warps, kernel.shared_bytes, pdl)
        if key not in self._configs:
            self._configs[key] = self._device.launch_config(
                grid, 32 * kernel.num_warps, kernel.shared_bytes, pdl
            )
        return self._configs[key]


class CudaPlan:
    """Launches with all but the addresses fixed: (kernel, configuration, launch) each."""

    def __init__(
        self,
        device: Any,
        launches: Sequence[tuple[Any, Any, Launch]],
        keep: Any = None,
    ):
        self._replays: OrderedDict[bytes, _Replay | None] = OrderedDict()  # freed before `keep`
        self._device, self._launches, self._keep = device, launches, keep  # `keep` stays loaded
        # each has scratch memory of its own: the next may start to write before one has ended
        sizes = [x.kernel.scratch_bytes * prod(x.grid) for _, _, x in launches]
        *begins, size = accumulate(map(aligned, sizes), initial=0)
        self._scratch = device.allocate(size, "kernels' scratch") if size else None
        base = self._scratch.address if self._scratch is not None else 0
        self._which = np.array([b for _, _, x in launches for b in x.buffers], np.int64)
        # an argument each: first all addresses, which runs fill in, then what never changes
        values = [0] * len(self._which)
        at: list[int] = []  # where in `values` the arguments are, launch after launch
        ends, buffers = [], 0
        for (_, _, launch), begin, size in zip(launches, begins, sizes):
            options = launch.kernel.options
            # Triton's kernels end in pointers of their own: scratch memory first, then unused ones
            hidden = [base + begin if size else 0, *[0] * options.get(abi.HIDDEN, 0)]
            hidden = hidden[: options.get(abi.HIDDEN, 0)]
            own = [*_unsigned(launch.dims, options[abi.DIMS]), *hidden]
            at += range(buffers, buffers + len(launch.buffers))
            at += range(len(values), len(values) + len(own))
            buffers += len(launch.buffers)
            values += own
            ends.append(len(at))
        self._values = np.array(values or [0], np.uint64)
        self._pointers = self._values.ctypes.data + 8 * np.array(at or [0], np.uint64)
        starts = [self._pointers.ctypes.data + 8 * end for end in (0, *ends)]
        self._calls = [(item[1], item[0], start) for item, start in zip(launches, starts)]

    def _fill(self, addresses: np.ndarray) -> bytes:
        """Put the addresses among the arguments. -> what tells them from others."""
        pointers = self._values[: len(self._which)]
        addresses.take(self._which, out=pointers, mode="clip")
        if np.bitwise_or.reduce(pointers) % ALIGNMENT:
            odd = int(pointers[pointers % ALIGNMENT != 0][0])
            raise DeviceError(
                "an array given to a kernel is not aligned",
                where=self._device.name,
                facts=f"its address is {odd:#x}, kernels need a multiple of {ALIGNMENT}",
                fix="pass a copy (x.clone()) in place of a slice",
            )
        return pointers.tobytes()

    def _launch(self, call: tuple[Any, Any, int]) -> None:
        config, kernel, arguments = call
        (error,) = self._device.driver.cuLaunchKernelEx(config, kernel, arguments, 0)
        if int(error):
            self._device.check((error, None))

    def run(self, addresses: np.ndarray) -> None:
        """Make the launches; returns before they are done."""
        self._device.enter()
        key = self._fill(addresses)
        if len(self._calls) > FEW_LAUNCHES:
            if key in self._replays:
                replay = self._replays[key] or self._captured(None)
                self._replays[key] = replay
                self._replays.move_to_end(key)
                replay()
                return
            self._replays[key] = None  # to be captured when they come again
            if len(self._replays) > MAX_REPLAYS:
                self._replays.popitem(last=False)
        for call in self._calls:
            self._launch(call)

    def profile(self, addresses: np.ndarray) -> list[float]:
        """Make each launch alone, between two events. -> seconds, one a launch."""
        device = self._device
        device.enter()
        self._fill(addresses)
        options = device.core.EventOptions(timing_enabled=True)
        times = []
        for call in self._calls:
            device.synchronize()
            start = device.stream.record(options=options)
            self._launch(call)
            stop = device.stream.record(options=options)
            stop.sync()
            times.append((stop - start) / 1000)
        return times

    def capture(self, addresses: np.ndarray) -> Callable[[], None]:
        """The launches as one captured graph. -> a function that replays it."""
        self._device.enter()
        self._fill(addresses)
        return self._captured(self)

    def _captured(self, owner: "CudaPlan | None") -> "_Replay":
        device = self._device
        builder = device.stream.create_graph_builder()
        builder.begin_building()
        for call in self._calls:
            self._launch(call)
        graph = builder.end_building().complete()
        graph.upload(device.stream)
        return _Replay(graph, owner, device)


def _unsigned(dims: Sequence[int], kinds: Sequence[str]) -> list[int]:
    """Integers as the kernel reads them, in the low bytes of 8."""
    masks = [0xFFFFFFFF if kind == "i32" else 2**64 - 1 for kind in kinds]
    return [value & mask for value, mask in zip(dims, masks, strict=True)]


class _Replay:
    """A captured graph, and the plan that owns what it uses, unless that owns this."""

    def __init__(self, graph: Any, plan: CudaPlan | None, device: Any):
        self._graph, self._plan, self._device = graph, plan, device  # freed in this order
        tell_after_fork(self)

    def after_fork(self) -> None:
        """In a forked process: the graph is the parent's."""
        self._device.abandon(self._graph)

    def __call__(self) -> None:
        self._device.enter()
        self._graph.launch(self._device.stream)
