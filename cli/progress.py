"""How far long work is, on standard error: a line redrawn in place on a terminal, elsewhere a line
every ten seconds.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ..ir.progress import UNITS, Progress, unwatched
from .console import human_bytes

BAR = 24  # columns
REDRAW = 0.5  # seconds between drawings while nothing is reported: the line shows that time passes
LEAST = 0.05  # seconds between drawings while much is reported
INTERVAL = 10.0  # seconds between lines where there is no terminal
CERTAIN = 1.0  # seconds of a stage after which its speed tells what is left


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Gives a `Progress` that shows what it hears on standard error; nothing when `quiet`."""
    if quiet:
        yield unwatched
        return
    watcher = Line(sys.stderr) if sys.stderr.isatty() else Log(sys.stderr)
    try:
        yield watcher.show
    finally:
        watcher.close()


class Watcher:
    """Keeps what was reported last, and draws it now and then from a thread of its own."""

    def __init__(self, stream: TextIO, every: float, clock: Callable[[], float]):
        self._stream, self._every, self._clock = stream, every, clock
        self._begin = self._stage_begin = clock()
        self._shown = ("start", 0, 1)
        self._lock = threading.RLock()  # two threads draw
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True)
        self._thread.start()

    def show(self, stage: str, done: int, of: int) -> None:
        """`done` of `of` parts of a stage are finished: a `Progress`."""
        with self._lock:
            before, was_done, _ = self._shown
            if stage != before or done < was_done:
                self._stage_begin = self._clock()
            self._shown = (stage, done, of)

    def close(self) -> None:
        """Draw no more."""
        self._closed.set()
        self._thread.join()

    def seconds_left(self) -> float | None:
        """Of this stage, at its speed so far; None while that is not known."""
        _, done, of = self._shown
        spent = self._clock() - self._stage_begin
        return spent * (of - done) / done if done and done < of and spent >= CERTAIN else None

    def draw(self) -> None:
        """Write what was reported last."""
        raise NotImplementedError

    def _keep_drawing(self) -> None:
        while not self._closed.wait(self._every):
            self.draw()

    def _times(self) -> str:
        left = self.seconds_left()
        return f"{self._clock() - self._begin:.0f} s" + (f", {left:.0f} s left" if left else "")


class Line(Watcher):
    """One line of a terminal, redrawn in place: stage, bar, count, seconds so far and left."""

    def __init__(
        self,
        stream: TextIO,
        every: float = REDRAW,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._full = "━" if _can_show("━", stream) else "="
        self._drawn = float("-inf")
        super().__init__(stream, every, clock)

    def show(self, stage: str, done: int, of: int) -> None:
        """Draws at once, but not at every one of many reports."""
        begins = stage != self._shown[0]
        super().show(stage, done, of)
        if begins or done == of or self._clock() - self._drawn >= LEAST:
            self.draw()

    def draw(self) -> None:
        """The line, over the one before."""
        with self._lock:
            stage, done, of = self._shown
            filled = BAR * done // max(of, 1)
            bar = self._full * filled + " " * (BAR - filled)
            count = f"{_count(stage, done, of)}  " if of > 1 else ""
            self._write(f"{stage:<8} {bar} {count}{self._times()}")
            self._drawn = self._clock()

    def close(self) -> None:
        """Leave an empty line."""
        super().close()
        self._write("")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}")
        self._stream.flush()


class Log(Watcher):
    """Lines, for a file or a log: one an interval, so none for work that is short."""

    def __init__(
        self,
        stream: TextIO,
        every: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(stream, every, clock)

    def draw(self) -> None:
        """One more line."""
        with self._lock:
            stage, done, of = self._shown
            unit = UNITS.get(stage, "")
            count = f" {_count(stage, done, of)}" + ("" if unit == "bytes" else f" {unit}")
            print(
                f"{stage}{count if of > 1 else ''}, {self._times()}", file=self._stream, flush=True
            )


def _count(stage: str, done: int, of: int) -> str:
    if UNITS.get(stage) == "bytes":
        return f"{human_bytes(done)} of {human_bytes(of)}"
    return f"{done}/{of}"


def _can_show(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
