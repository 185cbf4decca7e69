"""Processes of one machine as a group: arrays pass through memory that all of them share.

Results do not depend on which process comes first: reductions go by rank, so that every process of
a group has the same bits.
"""

import multiprocessing
import threading
from functools import reduce
from multiprocessing.context import BaseContext

import numpy as np

from ..ir.errors import DeviceError, ShapeError

SLOT_BYTES = 1 << 20  # of one process, in the memory of a group: larger arrays go in pieces
TIMEOUT = 300.0  # seconds that a process waits for the others of its group

_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


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

    def all_reduce(self, array: np.ndarray, reduction: str) -> np.ndarray:
        """See Communicator."""
        return _reduced(self._exchange(array), reduction)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """See Communicator."""
        return np.concatenate(self._exchange(array))

    def reduce_scatter(self, array: np.ndarray, reduction: str) -> np.ndarray:
        """See Communicator."""
        if not array.ndim or array.shape[0] % self.size:
            raise ShapeError(
                "an array does not divide evenly among the processes",
                facts=f"its shape is {list(array.shape)}, the group has {self.size} processes",
            )
        count = array.shape[0] // self.size
        mine = slice(self.rank * count, (self.rank + 1) * count)
        return _reduced([each[mine] for each in self._exchange(array)], reduction)

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """See Communicator."""
        return self._exchange(array)[root]

    def _exchange(self, array: np.ndarray) -> list[np.ndarray]:
        """Every process's array, by rank."""
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


def _reduced(arrays: list[np.ndarray], reduction: str) -> np.ndarray:
    dtype = arrays[0].dtype
    is_short = dtype.itemsize < 4 and dtype.kind not in "iub"
    wide = [array.astype(np.float32) for array in arrays] if is_short else arrays
    return reduce(_UFUNCS[reduction], wide).astype(dtype)
