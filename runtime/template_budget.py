"""What one rendering of a template may use: time of its thread, characters made, depth of data.

A template comes with a checkpoint and is not trusted. Nothing here interrupts it from outside
(signals and threads break inside servers): the sandbox asks before and after each operation.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_SECONDS = 5.0  # of the thread's own processor time, so that a busy machine changes nothing
MAX_CHARS = 32 << 20  # that may be made, beside what the caller gave
MAX_DEPTH = 200  # of lists in lists: deeper ones overflow the stack where Python does not look
MAX_INT_BITS = 1 << 14
SLOT_CHARS = 16  # what an element of a container counts beside its own characters


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
        """Know a value of the caller's, which costs nothing. -> the value."""
        before, self._chars = self._chars, 1 << 62
        self.size(value)
        self._chars = before
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
        self.spend(SLOT_CHARS * (1 + len(value)))
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


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The same values, each an operation."""
    tick = current().tick
    for value in values:
        tick()
        yield value


# ---- operations whose result can be far larger than what they are given -----------------------


def need_for_operator(operator: str, left: Any, right: Any) -> None:
    """Raise before `left operator right` would make more than is left."""
    budget = current()
    if operator == "*":
        for text, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(text, (str, bytes, list, tuple)):
                budget.need(budget.size(text) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > MAX_INT_BITS:
            raise TooMuch("it makes a number too large to write out")
    elif operator == "%" and isinstance(left, str):
        need_for_percent(left, right)


def need_for_percent(form: str, values: Any) -> None:
    """Raise before `form % values` would make more than is left."""
    specs = re.findall(r"%(?:\([^)]*\))?([-#0 +]*[\d.*]*)", form)
    if any("*" in spec for spec in specs):
        raise TooMuch("it formats to a width that it computes")
    widths = sum(int(n) for spec in specs for n in re.findall(r"\d+", spec))
    budget = current()
    budget.need(len(form) + widths + len(specs) * budget.size(values))


def need_for_format(spec: str) -> None:
    """Raise before a field of str.format would make more than is left."""
    current().need(sum(int(n[:20]) for n in re.findall(r"\d+", spec)))


def need_for_call(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise before a filter, or a method of a str, bytes or int, would make more than is left.

    args[0] is what the filter or method belongs to.
    """
    bound = _GROWTH.get(name)
    if bound is None:
        return
    try:
        chars = bound(*args, **named)
    except (TypeError, ValueError, AttributeError):
        return  # not its arguments: it will say so itself
    current().need(chars)


def _sized(value: Any) -> int:
    """How much an argument lengthens: a number by itself, a text by its length."""
    return abs(value) if isinstance(value, int) else len(value)


def _list_sum(values: Any, attribute: Any = None, start: Any = 0) -> int:
    # lists joined one by one are copied again each time
    return 0 if isinstance(start, (int, float)) else (len(values) + 1) ** 2 * SLOT_CHARS


# name -> a bound of the characters made, from the arguments of the filter or method
_GROWTH: dict[str, Callable[..., int]] = {
    "center": lambda text, width=80, fill=" ": width,
    "ljust": lambda text, width, fill=" ": width,
    "rjust": lambda text, width, fill=" ": width,
    "zfill": lambda text, width: width,
    "expandtabs": lambda text, tabsize=8: len(text) * tabsize,
    "to_bytes": lambda number, length=1, *_, **__: length,
    "replace": lambda text, old, new, *_: (len(text) // max(1, len(old)) + 1) * len(new),
    "join": lambda one, other="", attribute=None: len(one) * len(other),
    "translate": lambda text, table: len(text) * max(map(_sized, table.values()), default=0),
    "indent": lambda text, width=4, *_, **__: (text.count("\n") + 1) * _sized(width),
    "wordwrap": lambda text, *args, wrapstring="\n", **__: (
        len(text) * len(args[2] if len(args) > 2 else wrapstring or "\n")
    ),
    "batch": lambda values, count, fill=None: count * SLOT_CHARS,
    "slice": lambda values, count, fill=None: count * SLOT_CHARS,
    "round": lambda value, precision=0, method="common": abs(precision) ** 2,
    "sum": _list_sum,
    "pprint": lambda value: 8 * current().size(value),
}
