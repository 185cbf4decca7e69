"""Spare memory: what runs gave back, kept for the next run, which mostly asks for the same."""

from collections.abc import Callable


class SpareMemory:
    """Pieces by their size, each given again as it is; `free` takes those that are too many.

    Methods may be called in the middle of one another: memory is given back by whichever thread
    drops it, also while the collector runs. So they rest on list operations that are atomic.
    """

    def __init__(self, max_bytes: int, free: Callable[[int], None]):
        self._max_bytes, self._free = max_bytes, free
        self._spare: dict[int, list[int]] = {}  # addresses by size

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(size * len(addresses) for size, addresses in list(self._spare.items()))

    def take(self, size: int) -> int | None:
        """The address of a piece of exactly this size, which is the caller's now; None without."""
        try:
            return self._spare[size].pop()
        except (KeyError, IndexError):
            return None

    def give(self, size: int, address: int) -> None:
        """Keep a piece. Where that were too much all are freed, this too: sizes have changed."""
        self._spare.setdefault(size, []).append(address)
        if self.nbytes > self._max_bytes:
            self.clear()

    def clear(self) -> None:
        """Free all pieces."""
        for size in list(self._spare):
            while (address := self.take(size)) is not None:
                self._free(address)
