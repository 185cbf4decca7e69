"""What one rendering of a template may use: time of its thread, characters made, depth of data.

A template comes with a checkpoint and is not trusted. Nothing here interrupts it from outside
(signals and threads break inside servers): the sandbox asks before and after each operation.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_SECONDS = 5.0  # of the thread's own processor time, so that a busy machine changes nothing
MAX_CHARS = 32 << 20  # that may be made
MAX_DEPTH = 200  # of lists in lists: deeper ones overflow the stack where Python does not look
MAX_INT_BITS = 1 << 14
SLOT_CHARS = 16  # what an element of a container counts beside its own characters
CONTAINER_CHARS = 64  # what a container counts beside its elements
GIVEN_TIMES = 8  # characters that may be made for each one that the caller gave, beside MAX_CHARS


class TooMuch(Exception):  # not an error of ours: the renderer makes one of it
    """A template used up its budget."""


class Budget:
    """What is left. `size` is of a value written out, and so without bound in what it shares."""

    def __init__(self) -> None:
        self._chars = MAX_CHARS
        self._until = time.thread_time() + MAX_SECONDS
        # id of a container -> it (so that the id stays its own), its size and depth
        self._known: dict[int, tuple[Any, int, int]] = {}

    def tick(self) -> None:
        """Once an iteration and an operation."""
        if time.thread_time() > self._until:
            raise TooMuch(f"it has run for {MAX_SECONDS:g} seconds")

    def need(self, chars: int) -> None:
        """Raise before an operation that would make more than is left."""
        if chars > self._chars:
            raise TooMuch(f"it makes more than {MAX_CHARS:,} characters")

    def spend(self, chars: int) -> None:
        """Count what was made."""
        self.need(chars)
        self._chars -= chars

    def charge(self, value: Any) -> Any:
        """Count a value just made. -> the value."""
        self.tick()
        if isinstance(value, (str, bytes)):
            self.spend(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise TooMuch(f"it makes a number of {value.bit_length():,} bits")
        else:
            self.size(value)
        return value

    def given(self, value: Any) -> Any:
        """Know a value of the caller's, which costs nothing and lets more be made. -> the value."""
        before, self._chars = self._chars, 1 << 62
        size = self.size(value)
        self._chars = before + GIVEN_TIMES * size
        return value

    def size(self, value: Any) -> int:
        """Characters of a value written out; counts containers that are new."""
        return self._measure(value)[0]

    def _measure(self, value: Any, is_element: bool = False) -> tuple[int, int]:
        if isinstance(value, (str, bytes)):
            if is_element:
                self.spend(len(value))
            return len(value), 0
        if not isinstance(value, (list, tuple, dict, set, frozenset)):
            return SLOT_CHARS, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1], known[2]
        self.spend(CONTAINER_CHARS + SLOT_CHARS * len(value))
        size = depth = 0
        elements = (e for pair in value.items() for e in pair) if isinstance(value, dict) else value
        for element in elements:
            inner, below = self._measure(element, is_element=True)
            size, depth = size + SLOT_CHARS + inner, max(depth, below)
        if size > MAX_CHARS:
            self.need(size)
        if depth + 1 > MAX_DEPTH:
            raise TooMuch(f"it nests data more than {MAX_DEPTH} deep")
        self._known[id(value)] = value, size, depth + 1
        return size, depth + 1


_CURRENT: ContextVar[Budget] = ContextVar("budget of the template that is rendered")


@contextmanager
def budget() -> Iterator[Budget]:
    """A new budget for what this thread renders meanwhile."""
    token = _CURRENT.set(Budget())
    try:
        yield _CURRENT.get()
    finally:
        _CURRENT.reset(token)


def current() -> Budget:
    """The budget of what is being rendered."""
    return _CURRENT.get()


def counted(values: Iterable[Any], chars: int = 0) -> Iterator[Any]:
    """The same values, each an operation that makes so many characters."""
    budget = current()
    if isinstance(values, (str, bytes)):
        budget.need(len(values) * SLOT_CHARS)  # each character becomes a text of its own
    for value in values:
        budget.tick()
        budget.spend(chars)
        yield value
