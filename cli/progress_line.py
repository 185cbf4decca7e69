"""How far long work is, on standard error: a line redrawn in place on a terminal, elsewhere a line
every ten seconds.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ..ir.progress import UNITS, Progress, unwatched
from .console import human_bytes

BAR = 24  # columns
COLUMNS = 80  # of a terminal that does not tell
LEAST = 0.05  # seconds between drawings while much is reported
CERTAIN = 1.0  # seconds of a stage after which its speed tells what is left


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Gives a `Progress` that shows what it hears on standard error; nothing when `quiet`."""
    if quiet:
        yield unwatched
        return
    if sys.stderr.isatty():
        watcher = Line(sys.stderr)
        others = contextlib.redirect_stderr(_Above(watcher))
    else:
        watcher, others = Log(sys.stderr), contextlib.nullcontext()
    try:
        with others:
            yield watcher.show
    finally:
        watcher.close()


class Watcher:
    """Keeps what was reported last, and draws it now and then from a thread of its own."""

    every: float  # seconds between drawings while nothing is reported

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._stream: TextIO | None = stream
        self._clock = clock
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

    @property
    def is_closed(self) -> bool:
        """Whether nothing is drawn any more."""
        return self._closed.is_set()

    def seconds_left(self) -> float | None:
        """Of this stage, at its speed so far; None while that is not known."""
        _, done, of = self._shown
        spent = self._clock() - self._stage_begin
        return spent * (of - done) / done if done and done < of and spent >= CERTAIN else None

    def draw(self) -> None:
        """Write what was reported last."""
        raise NotImplementedError

    def _keep_drawing(self) -> None:
        while not self._closed.wait(self.every):
            self.draw()

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more, which is no reason to stop working
            self._stream = None

    def _times(self) -> str:
        left = self.seconds_left()
        return f"{self._clock() - self._begin:.0f} s" + (f", {left:.0f} s left" if left else "")


class Line(Watcher):
    """One line of a terminal, redrawn in place: stage, bar, count, seconds so far and left."""

    every = 0.5  # the line shows that time passes

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        self._full = "━" if _can_show("━", stream) else "="
        self._drawn = float("-inf")
        self._unfinished = ""  # of what others write
        super().__init__(stream, clock)

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
            text = f"{stage:<8} {bar} {count}{self._times()}"
            columns = _columns(self._stream) - 1  # a line that is full would begin another
            if len(text) > columns:
                text = f"{stage} {count}{self._times()}"[:columns]
            self._redraw(text)
            self._drawn = self._clock()

    def write_above(self, text: str) -> None:
        """Keep what others write: its whole lines go above this one."""
        with self._lock:
            whole, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
            if newline:
                self._redraw(whole + newline)
                self.draw()

    def close(self) -> None:
        """Leave an empty line."""
        super().close()
        self._redraw(self._unfinished)

    def _redraw(self, text: str) -> None:
        self._write(f"\r\x1b[2K{text}")


class _Above:
    """Standard error while a line is drawn on it, for everybody else."""

    def __init__(self, line: Line):
        self._line, self._stream = line, sys.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write whole lines above the drawn one, and anything once that is gone."""
        if self._line.is_closed:
            return self._stream.write(text)
        self._line.write_above(text)
        return len(text)


class Log(Watcher):
    """Lines, for a file or a log: one an interval, so none for work that is short."""

    every = 10.0

    def draw(self) -> None:
        """One more line."""
        with self._lock:
            stage, done, of = self._shown
            unit = UNITS.get(stage, "")
            count = f" {_count(stage, done, of)}" + ("" if unit == "bytes" else f" {unit}")
            self._write(f"{stage}{count if of > 1 else ''}, {self._times()}\n")


def _count(stage: str, done: int, of: int) -> str:
    if UNITS.get(stage) == "bytes":
        return f"{human_bytes(done)} of {human_bytes(of)}"
    return f"{done}/{of}"


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except (OSError, ValueError, AttributeError):  # a stream in memory
        return COLUMNS


def _can_show(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
