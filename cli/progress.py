"""A progress line on standard error for long work; silent where nobody watches."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .compiler import Progress

BAR = 24  # columns
TICK = 0.5  # seconds between redraws while nothing is reported: the line shows that time passes


@contextmanager
def progress(quiet: bool = False) -> "Iterator[Progress]":
    """Gives a function (what, done, of) that draws one line; the line is gone afterwards.

    Draws nothing when `quiet`, or when standard error is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    line = Line(sys.stderr)
    try:
        yield line.show
    finally:
        line.close()


class Line:
    """One line of a terminal, redrawn in place: what is being done, a bar, seconds so far."""

    def __init__(self, stream: TextIO, tick: float = TICK):
        self._stream, self._tick = stream, tick
        self._start = time.monotonic()
        self._shown = ("load", 0, 1)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True)
        self._thread.start()

    def show(self, what: str, done: int, of: int) -> None:
        """`done` of `of` parts of `what` are finished."""
        self._shown = (what, done, of)
        self._draw()

    def close(self) -> None:
        """Stop redrawing and clear the line."""
        self._closed.set()
        self._thread.join()
        self._write("")

    def _keep_drawing(self) -> None:
        while not self._closed.wait(self._tick):
            self._draw()

    def _draw(self) -> None:
        what, done, of = self._shown
        filled = BAR * done // max(of, 1)
        bar = "━" * filled + " " * (BAR - filled)
        count = f"{done}/{of}  " if of > 1 else ""
        self._write(f"{what:<8} {bar} {count}{time.monotonic() - self._start:.0f} s")

    def _write(self, text: str) -> None:
        with self._lock:  # two threads draw
            self._stream.write(f"\r\x1b[2K{text}")
            self._stream.flush()
