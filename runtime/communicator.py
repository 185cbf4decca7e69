"""Groups of processes that run one program together, and what collective steps make of arrays.

Results do not depend on which process comes first: reductions go by rank, so that every process of
a group has the same bits.
"""

import multiprocessing
import threading
from collections.abc import Iterable, Mapping
from functools import reduce
from multiprocessing.context import BaseContext
from typing import Protocol

import numpy as np

from ..ir.errors import DeviceError, ShapeError
from ..ir.host_functions import find_named
from ..ir.steps import Collective

SLOT_BYTES = 1 << 20  # of one process, in the memory of a group: larger arrays go in pieces
TIMEOUT = 300.0  # seconds that a process waits for the others of its group

_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Communicator(Protocol):
    """One process's place in a group. Every process makes the same calls in the same order."""

    rank: int
    size: int

    def exchange(self, array: np.ndarray) -> list[np.ndarray]:
        """Every process's array, by rank: of one shape and dtype in all of them."""
        ...


class Single:
    """A group of one process: what it gives is what it gets."""

    rank, size = 0, 1

    def exchange(self, array: np.ndarray) -> list[np.ndarray]:
        """See Communicator."""
        return [array]


def find_groups(
    program: str, names: Iterable[str], given: Mapping[str, Communicator]
) -> dict[str, Communicator]:
    """The communicator of each group that a program names; DeviceError tells all missing."""
    return find_named(
        given,
        names,
        f"{program} belongs to {{}} groups of processes that were not given",
        "pass communicators={name: ...}; runtime.communicator.Single() is a group of one",
    )


def communicated(step: Collective, group: Communicator, array: np.ndarray) -> np.ndarray:
    """What the step's operation gives this process for its `array`.

    f16, bf16 and f8 are summed in f32, then rounded; other dtypes in their own. ShapeError when
    axis 0 of what is reduced and scattered does not divide evenly.
    """
    if step.operation == "reduce_scatter" and array.shape[0] % group.size:
        raise ShapeError(
            "an array does not divide evenly among the processes",
            where=step.loc or step.name,
            facts=f"its shape is {list(array.shape)}, the group has {group.size} processes",
        )
    arrays = group.exchange(array)
    if step.operation == "all_gather":
        return np.concatenate(arrays)
    if step.operation == "broadcast":
        return arrays[step.root]
    if step.operation == "reduce_scatter":
        arrays = [np.split(each, group.size)[group.rank] for each in arrays]
    is_short = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    wide = [each.astype(np.float32) for each in arrays] if is_short else arrays
    return reduce(_UFUNCS[step.reduction], wide).astype(array.dtype)


class HostGroup:
    """Memory that the processes of one machine share. Make it in the parent, and hand it to each.

    It travels as an argument of `Process`; `member(rank)` there is that process's communicator.
    """

    def __init__(self, size: int, context: BaseContext | None = None, timeout: float = TIMEOUT):
        context = context or multiprocessing.get_context()
        self.size, self.timeout = size, timeout
        self.barrier = context.Barrier(size)
        self.memory = context.RawArray("b", size * SLOT_BYTES)

    def member(self, rank: int) -> "HostCommunicator":
        """The place of the process that calls this."""
        if not 0 <= rank < self.size:
            raise DeviceError(f"a group of {self.size} processes has no rank {rank}")
        return HostCommunicator(self, rank)


class HostCommunicator:
    """One process of a HostGroup."""

    def __init__(self, group: HostGroup, rank: int):
        self.rank, self.size, self._group = rank, group.size, group
        self._slots = np.frombuffer(group.memory, np.uint8).reshape(group.size, SLOT_BYTES)

    def exchange(self, array: np.ndarray) -> list[np.ndarray]:
        """See Communicator. ShapeError where the arrays differ, DeviceError where one is late."""
        self._agree(array)
        mine = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        found = np.empty((self.size, mine.size), np.uint8)
        for start in range(0, mine.size, SLOT_BYTES):
            piece = mine[start : start + SLOT_BYTES]
            found[:, start : start + piece.size] = self._pass(piece)
        return [each.view(array.dtype).reshape(array.shape) for each in found]

    def _pass(self, piece: np.ndarray) -> np.ndarray:
        self._slots[self.rank, : piece.size] = piece
        self._wait()  # all have written
        found = self._slots[:, : piece.size].copy()
        self._wait()  # all have read: the slots may be written again
        return found

    def _agree(self, array: np.ndarray) -> None:
        """ShapeError when another process brings an array of another type."""
        text = f"{array.dtype}{list(array.shape)}"
        told = np.zeros(512, np.uint8)
        told[: len(text)] = np.frombuffer(text.encode(), np.uint8)
        texts = [bytes(each).rstrip(b"\0").decode() for each in self._pass(told)]
        if len(set(texts)) > 1:
            raise ShapeError(
                "the processes of a group bring arrays of different types",
                facts="\n".join(f"rank {rank}: {said}" for rank, said in enumerate(texts)),
                fix="run the same program with the same sizes in each",
            )

    def _wait(self) -> None:
        try:
            self._group.barrier.wait(self._group.timeout)
        except threading.BrokenBarrierError:
            raise DeviceError(
                "another process of the group did not come",
                where=f"rank {self.rank} of {self.size}",
                facts=f"waited for at most {self._group.timeout} seconds",
                fix="see what the other processes report",
            ) from None
