"""What collective steps ask of a group of processes that run one program together."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from ..ir.host_functions import find_named


class Communicator(Protocol):
    """One process's place in a group. Every process makes the same calls in the same order.

    Arrays must have one shape and dtype in all processes. f16, bf16 and f8 are summed in f32, then
    rounded; other dtypes in their own.
    """

    rank: int
    size: int

    def all_reduce(self, array: np.ndarray, reduction: str) -> np.ndarray:
        """The reduction (sum, max, min) of all processes' arrays."""
        ...

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """All processes' arrays along axis 0, by rank."""
        ...

    def reduce_scatter(self, array: np.ndarray, reduction: str) -> np.ndarray:
        """The piece of this process, along axis 0, of the reduction. The axis divides evenly."""
        ...

    def broadcast(self, array: np.ndarray, root: int) -> np.ndarray:
        """The array of the process of rank `root`."""
        ...


class Single:
    """A group of one process: what it gives is what it gets."""

    rank, size = 0, 1

    def all_reduce(self, array: np.ndarray, *_: object) -> np.ndarray:
        """See Communicator."""
        return array

    all_gather = reduce_scatter = broadcast = all_reduce


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
