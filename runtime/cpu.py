"""The CPU as a device: NumPy memory, and a program's shared library called through ctypes.

ir/abi.py describes the library's interface; its version must be what the library says of itself.
"""

import ctypes
import math
import os
import re
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..ir import abi
from ..ir.errors import DeviceError
from ..ir.program import ALIGNMENT, Program
from ..ir.switches import get as get_switch
from . import cgroup
from .device import Done, Item, Launch, Move, check_room, no_memory

# bytes and operations of a run that one core does in 60 us (products from its cache) to 200 us
# (what it reads from memory): waking others, and waiting for them after each step, takes as long,
# and far longer where they have other work
SHARED_WORK = 1 << 22
# of a step that one core does while others would come to help and leave again
LITTLE_WORK = 1 << 16
Made = TypeVar("Made")
CHECK_BYTES = 16 << 20  # smaller requests are not held against what the machine has left


def usable_cores() -> int:
    """Cores that this process may run on: affinity, and a container's quota if it is lower."""
    return min(len(os.sched_getaffinity(0)), _quota_cores())


@lru_cache(maxsize=1)  # asked at every run, and a file is slow to read
def _quota_cores() -> int:
    return cgroup.quota_cores() or 1 << 16


# /proc/cpuinfo's names of what a compiler may use: vectors, matrices, bits, ciphers
_ISA = re.compile(
    r"(sse|ssse|avx|amx|fma|bmi|vaes|vpcl|gfni|asimd|sve|sme)\w*|f16c|movbe|popcnt|adx"
)
_ISA_ARM = ("bf16", "i8mm", "fphp", "atomics", "flagm", "dotprod")


def instruction_sets() -> tuple[str, ...]:
    """What this processor has that changes the code a compiler makes for it."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    flags = sorted(set(value.split()))
                    return tuple(f for f in flags if _ISA.fullmatch(f) or f in _ISA_ARM)
    except OSError:
        return ()
    return ()


def available_bytes() -> int:
    """Memory that this process can still have: the machine's, or its container's if less."""
    available = 1 << 62
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
    except OSError:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    left = cgroup.available_bytes()
    return available if left is None else min(available, left)


def host_array(shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
    """A NumPy array, not filled. OutOfMemory when it is larger than the memory there is."""
    nbytes = math.prod(shape) * dtype.itemsize
    return _made(nbytes, what, lambda: np.empty(shape, dtype))


def _made(nbytes: int, what: str, make: Callable[[], Made]) -> Made:
    """What `make` makes of so many bytes. OutOfMemory when they are more than there are."""
    available = available_bytes() if nbytes >= CHECK_BYTES else nbytes
    if nbytes > available:
        raise no_memory(nbytes, what, "cpu", available)
    try:
        return make()
    except (MemoryError, ValueError) as error:  # ValueError: more than an address can count
        raise no_memory(nbytes, what, "cpu", available_bytes()) from error


class HostMemory:
    """Aligned memory of the process."""

    def __init__(self, nbytes: int):
        # zeros, not empty: pages that nobody touches then cost nothing
        self._raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        start = -self._raw.ctypes.data % ALIGNMENT
        self.bytes = self._raw[start : start + nbytes]
        self.address = self._raw.ctypes.data + start
        self.nbytes = nbytes


class CpuDevice:
    """The processor this runs on. `threads` overrides the switch of that name."""

    name = "cpu"
    kind = "cpu"
    dlpack_device = (1, 0)
    dlpack_stream = None

    def __init__(self, threads: int | None = None):
        self._threads = threads

    def threads(self, work: int) -> int:
        """Threads for a run of so much work: as asked for, else one where more do not pay."""
        asked = self._threads or get_switch("threads")
        return asked or (usable_cores() if work >= SHARED_WORK else 1)

    def wait_for(self, stream: int) -> None:
        """See Device. A CPU has no streams."""

    def hand_over(self, stream: int) -> None:
        """See Device."""

    def enter(self) -> None:
        """See Device. A CPU is there in every thread and process."""

    def allocate(
        self, nbytes: int, what: str, *, zero: bool = False, brief: bool = False
    ) -> HostMemory:
        """See Device. Memory is always zero when new."""
        return _made(nbytes, what, lambda: HostMemory(nbytes))

    def free_bytes(self) -> int:
        """Memory that this process can still have."""
        return available_bytes()

    def zero(self, memory: HostMemory) -> None:
        """Fill with zero bytes."""
        memory.bytes[:] = 0

    def upload(self, memory: HostMemory, array: np.ndarray) -> None:
        """Copy `array` into `memory`."""
        check_room(memory, array)
        self.copy(memory.address, array.ctypes.data, array.nbytes)

    def download(self, memory: HostMemory, array: np.ndarray) -> None:
        """Copy from `memory` into `array`."""
        check_room(memory, array)
        self.copy(array.ctypes.data, memory.address, array.nbytes)

    def host_memory(self, nbytes: int) -> np.ndarray:
        """Zeros."""
        return np.zeros(nbytes, np.uint8)

    def send(self, memory: HostMemory, array: np.ndarray) -> Done:
        """Copy `array` into `memory`."""
        self.upload(memory, array)
        return self.synchronize

    def fetch(self, memory: HostMemory, array: np.ndarray) -> Done:
        """Copy from `memory` into `array`."""
        self.download(memory, array)
        return self.synchronize

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between two addresses."""
        if nbytes and target != source:
            ctypes.memmove(target, source, nbytes)

    def load(self, program: Program) -> "CpuModule":
        """Load the program's shared libraries."""
        if program.target != self.kind:
            raise DeviceError(
                f"{program.name} was compiled for {program.target}, this device is the CPU",
                fix="load it on a device of that kind, or compile it for the target cpu",
            )
        return CpuModule(program, self)

    def synchronize(self) -> None:
        """Nothing to wait for: a run returns when it is done."""


class CpuModule:
    """The libraries of a program."""

    takes_blocks = True

    def __init__(self, program: Program, device: CpuDevice):
        self._device = device
        self._libraries = {name: _Library(name, blob) for name, blob in program.blobs.items()}
        self._where = {
            name: (self._libraries[kernel.binary], self._libraries[kernel.binary].index(name))
            for name, kernel in program.kernels.items()
        }

    def plan(self, launches: Sequence[Item]) -> "CpuPlan":
        """Prepare `launches`."""
        steps: list[_Step] = []
        work = sum(self._add(item, steps) for item in launches)
        assert len(self._libraries) <= 1, "a CPU program has one library"
        library = next(iter(self._libraries.values()), None) if steps else None
        return CpuPlan(library, steps, work, self._device)

    def _add(self, item: Item, steps: list["_Step"]) -> int:
        """Append the steps of an item. -> bytes and operations of it all."""
        if isinstance(item, Launch):
            work = item.traffic + item.operations
            index = self._where[item.kernel.name][1]
            steps.append(_Step(index, work < LITTLE_WORK, item.buffers, item.dims))
            return work
        if isinstance(item, Move):
            numbers = (*item.starts, item.nbytes, *item.strides)
            steps.append(_Step(abi.COPY, True, item.buffers, numbers))
            return 2 * item.nbytes
        at = len(steps)
        steps.append(_Step(abi.COPY, True, (), ()))  # its place
        works, ends = [], [at]
        for body in item.bodies:
            works.append(sum(self._add(each, steps) for each in body))
            ends.append(len(steps) - 1)
        lengths = tuple(b - a for a, b in pairwise(ends))
        if item.flag is None:
            steps[at] = _Step(abi.REPEAT, True, (), (item.times, *lengths))
        else:
            steps[at] = _Step(abi.CHOOSE, True, (item.flag,), lengths)
        return item.times * max(works)


class _Step(NamedTuple):
    """A step as the driver has it, the places of its buffers apart."""

    kernel: int
    alone: bool
    buffers: tuple[int, ...]
    dims: tuple[int, ...]


class CpuPlan:
    """The table of steps that the library's driver walks, and the pointers and dims behind it."""

    def __init__(
        self, library: "_Library | None", steps: Sequence[_Step], work: int, device: CpuDevice
    ):
        self._library, self._device, self._count = library, device, len(steps)
        self._work = work
        self._which = np.array([b for step in steps for b in step.buffers], np.int64)
        self._pointers = np.zeros(max(len(self._which), 1), np.uint64)
        self._dims = np.array([d for step in steps for d in step.dims] or [0], np.int64)
        self._steps = np.zeros(max(len(steps), 1), abi.STEP)
        if steps:
            self._steps["kernel"] = [step.kernel for step in steps]
            self._steps["alone"] = [step.alone for step in steps]
            self._steps["p"] = _starts(self._pointers, [len(step.buffers) for step in steps])
            self._steps["d"] = _starts(self._dims, [len(step.dims) for step in steps])
        self._steps_at = self._steps.ctypes.data

    def run(self, addresses: np.ndarray) -> None:
        """Run all steps; returns when they are done."""
        self._run(addresses, None)

    def profile(self, addresses: np.ndarray) -> list[float]:
        """Run all steps, timing each. -> seconds."""
        nanoseconds = np.zeros(self._count, np.int64)
        self._run(addresses, nanoseconds.ctypes.data)
        return (nanoseconds / 1e9).tolist()

    def capture(self, addresses: np.ndarray) -> Callable[[], None] | None:
        """A CPU has nothing to capture: the steps are already one call."""
        return None

    def _run(self, addresses: np.ndarray, nanoseconds: int | None) -> None:
        if self._library is None:
            return
        if self._count and len(self._which):
            # other modes lock `out` meanwhile: a process forked then could never write to it
            addresses.take(self._which, out=self._pointers, mode="clip")
        threads = self._device.threads(self._work)
        status = self._library.run(self._steps_at, self._count, threads, nanoseconds)
        if status == abi.NO_MEMORY:
            needed = self._library.scratch_bytes(self._steps_at, self._count, threads)
            raise no_memory(needed, "the kernels' scratch", "cpu", available_bytes())
        if status != abi.OK:
            raise DeviceError(
                "the program's library refused a step",
                where=self._library.name,
                facts=f"tw_run returned {status}; nothing has run",
                fix="the program and its library do not belong together: compile again",
            )


def _starts(array: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Addresses of consecutive pieces of `array`, of so many elements each."""
    return array.ctypes.data + array.itemsize * (np.cumsum(counts) - counts)


class _Library:
    """A shared library loaded from memory: nothing is written to a disk."""

    def __init__(self, name: str, blob: bytes):
        self.name = name
        # the descriptor stays open as long as the library, because the loader knows a library by
        # its path: a second one under a reused number would be taken for the first
        self._file = os.memfd_create(f"tilewright-{name}")
        self._path = f"/proc/self/fd/{self._file}"
        try:
            with os.fdopen(os.dup(self._file), "wb") as file:
                file.write(blob)
            self._library = ctypes.CDLL(self._path)
        except OSError as error:
            os.close(self._file)
            raise DeviceError(
                "the program's shared library does not load",
                where=name,
                facts=str(error),
                fix="install what the message names, or compile again here",
            ) from error
        self._check_version()
        close = self._function("tw_close", None)
        what = (self._library._handle, close, self._path, self._file)
        unload = weakref.finalize(self, _unload, *what)
        unload.atexit = (
            False  # the process takes everything with it, runs of other threads included
        )
        self._index = self._function("tw_kernel_index", ctypes.c_int32, ctypes.c_char_p)
        steps = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
        self.scratch_bytes = self._function("tw_scratch_bytes", ctypes.c_int64, *steps)
        self.run = self._function("tw_run", ctypes.c_int32, *steps, ctypes.c_void_p)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = arguments, result
        return function

    def _check_version(self) -> None:
        version = getattr(self._library, "tw_abi_version", None)
        found = version() if version is not None else None
        if found != abi.VERSION:
            _unload(self._library._handle, lambda: None, self._path, self._file)
            raise DeviceError(
                "the program's shared library has another interface",
                where=self.name,
                facts=f"it has version {found}, this runtime speaks version {abi.VERSION}",
                fix="compile the program again",
            )

    def index(self, kernel: str) -> int:
        """A kernel's index in the library's table; DeviceError when it is not there."""
        found = self._index(kernel.encode())
        if found < 0:
            raise DeviceError(
                f"the program's shared library lacks the kernel {kernel}",
                where=self.name,
                fix="the program and its library do not belong together: compile again",
            )
        return found


def _unload(handle: int, close: Callable[[], None], path: str, file: int) -> None:
    """End the library's threads, unload it and give its memory back."""
    close()
    _loader.dlclose(handle)
    if not _is_loaded(path):  # else the loader still knows the path, and the number must stay taken
        os.close(file)


def _is_loaded(path: str) -> bool:
    try:
        ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


_loader = ctypes.CDLL(None)
_loader.dlclose.argtypes, _loader.dlclose.restype = (ctypes.c_void_p,), ctypes.c_int
