"""A progress line on standard error for long work; silent where nobody watches."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiler import Progress

BAR = 24  # columns


@contextmanager
def progress(quiet: bool = False) -> "Iterator[Progress]":
    """Gives a function (what, done, of) that draws one line; the line is gone afterwards.

    Draws nothing when `quiet`, or when standard error is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    line = _Line()
    try:
        yield line.show
    finally:
        line.clear()


class _Line:
    def __init__(self) -> None:
        self.start = time.monotonic()

    def show(self, what: str, done: int, of: int) -> None:
        """Redraw: what is being done, a bar, and seconds since the beginning."""
        filled = BAR * done // max(of, 1)
        bar = "━" * filled + " " * (BAR - filled)
        seconds = time.monotonic() - self.start
        sys.stderr.write(f"\r\x1b[2K{what}  {bar} {done}/{of}  {seconds:.0f} s")
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
