"""What the runtime asks of a device: memory, copies, compiled code, and launches.

A program is bound to sizes by `runtime/binding.py`; the device then makes a `LaunchPlan` of the
launches once and runs it many times. Everything a device is told to do happens in the order it was
told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..ir.errors import OutOfMemory
from ..ir.program import Kernel, Program

Done = Callable[[], None]  # waits until what was begun is done, and for nothing begun later


@dataclass(slots=True)  # not frozen: thousands are made when sizes change
class Launch:
    """One launch with its sizes known.

    `buffers` are indices into the addresses that `LaunchPlan.run` is given, in the order of the
    kernel's arguments; `dims` the integers that follow them. Launches whose grid is empty are not
    made.
    """

    step: int  # index into the steps that were bound: Program.steps where all are launches
    kernel: Kernel
    buffers: tuple[int, ...]
    dims: tuple[int, ...]
    grid: tuple[int, ...] = ()
    traffic: int = 0  # bytes that must move
    operations: int = 0


@dataclass(slots=True)
class Move:
    """`nbytes` from a buffer to another: (source, target) are indices into the addresses.

    `starts` are bytes into both, `strides` how far both go on each time in a loop.
    """

    buffers: tuple[int, int]
    starts: tuple[int, int]
    nbytes: int
    strides: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Nest:
    """The one body so many times, or the first of two where a bool is true, else the second."""

    bodies: tuple[tuple["Item", ...], ...]
    times: int = 1
    flag: int | None = None  # index of the buffer that the bool lies in


Item = Launch | Move | Nest


class Memory(Protocol):
    """A piece of device memory; freed when nothing refers to it any more."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Memory that was not allocated for itself; `keep` is what keeps it, where nobody else does."""

    address: int
    nbytes: int
    keep: Any = None


class LaunchPlan(Protocol):
    """Launches ready to be made. `addresses[i]` is where buffer i of the program lies."""

    def run(self, addresses: np.ndarray) -> None:
        """Make the launches; may return before they are done. addresses: uint64."""
        ...

    def profile(self, addresses: np.ndarray) -> list[float]:
        """Make each launch alone, waiting for it. -> seconds, one a launch."""
        ...

    def capture(self, addresses: np.ndarray) -> Callable[[], None] | None:
        """Fix the addresses and return a cheaper way to run, or None where there is none.

        The memory behind the addresses must outlive what is returned.
        """
        ...


class Module(Protocol):
    """A program's code, loaded."""

    takes_blocks: bool  # whether a plan may hold moves and blocks beside launches

    def plan(self, launches: Sequence[Item]) -> LaunchPlan:
        """Prepare `launches`, which run in this order."""
        ...


class Device(Protocol):
    """One CPU or GPU."""

    name: str  # "cpu", "cuda:0": for messages
    kind: str  # cpu | cuda | hip, as in Target.kind
    dlpack_device: tuple[int, int]  # (1, 0) for the CPU, (2, index) for CUDA
    dlpack_stream: int | None  # what producers of DLPack capsules are told to wait for

    def wait_for(self, stream: int) -> None:
        """Do what comes next after what another stream of this device was told so far."""
        ...

    def hand_over(self, stream: int) -> None:
        """Let another stream of this device do what it is told next after all told so far."""
        ...

    def enter(self) -> None:
        """Make the device current in this thread. DeviceError in a process that cannot use it."""
        ...

    def allocate(
        self, nbytes: int, what: str, *, zero: bool = False, brief: bool = False
    ) -> Memory:
        """Memory of `nbytes`, its address a multiple of ALIGNMENT; undefined content unless `zero`.

        What is `brief` is soon given back, and may then be kept for who asks for as much next.
        OutOfMemory names `what`, says how much was needed and how much there was.
        """
        ...

    def free_bytes(self) -> int:
        """How much `allocate` can give now."""
        ...

    def zero(self, memory: Memory) -> None:
        """Fill with zero bytes."""
        ...

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        """Copy a C-contiguous host array to the beginning of `memory`.

        The array may be changed once this returns.
        """
        ...

    def download(self, memory: Memory, array: np.ndarray) -> None:
        """Copy into a C-contiguous host array, after waiting for the work before."""
        ...

    def host_memory(self, nbytes: int) -> np.ndarray:
        """Zeros of host memory, u8, to and from which `send` and `fetch` copy beside the host."""
        ...

    def send(self, memory: Memory, array: np.ndarray) -> Done:
        """Begin to copy a C-contiguous array of `host_memory` to the beginning of `memory`.

        The array must stay as it is until `Done` was called.
        """
        ...

    def fetch(self, memory: Memory, array: np.ndarray) -> Done:
        """Begin to copy into a C-contiguous array of `host_memory`, after the work before."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between two addresses of the device."""
        ...

    def load(self, program: Program) -> Module:
        """Load the program's binaries. DeviceError when they are not for this device."""
        ...

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
        ...


def no_memory(nbytes: int, what: str, where: str, available: int) -> OutOfMemory:
    """The error where `what` needs `nbytes`, and the device has so many available."""
    return OutOfMemory(
        f"no memory for {what}",
        where=where,
        facts=f"needed: {nbytes:,} bytes; available: {available:,} bytes",
        fix="use smaller sizes (a smaller batch, context or pool), or free memory",
    )


def check_room(memory: Memory, array: np.ndarray) -> None:
    """What a caller of `upload` or `download` has to hold."""
    assert array.flags.c_contiguous, "only dense arrays are copied"
    assert array.nbytes <= memory.nbytes, "a copy must stay inside the memory"
