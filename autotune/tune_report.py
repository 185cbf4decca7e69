"""What tuning did: what was tried, what won, by how much, and how far it is from the floor."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .key import Key
from .record import ScheduleRecord, schedule_to_json
from .task import Task, Tried


@dataclass(frozen=True)
class TuneRow:
    """One task: the record there is now, None where there is none and `problem` may say why."""

    key: Key
    task: Task
    record: ScheduleRecord | None = None
    tried: tuple[Tried, ...] = ()
    was_kept: bool = False  # from an earlier run
    problem: str = ""

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.record is not None:
            return "kept" if self.was_kept else "tuned"
        return "failed" if self.problem else "no time left"

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default schedule."""
        record = self.record
        return None if record is None else record.default_seconds / record.seconds

    @property
    def share(self) -> float | None:
        """Of the time, what the floor is: 1 is as fast as the device allows."""
        return None if self.record is None else self.record.floor_seconds / self.record.seconds

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        record = self.record
        return {
            "kernel": self.task.kernel.template,
            "key": self.key.digest,
            "sizes": self.key.bucket,
            "launches": self.task.count,
            "state": self.state,
            "tried": record.tried if record is not None else len(self.tried),
            "failed": self.failures,
            "default": schedule_to_json(self.task.default),
            "schedule": None if record is None else schedule_to_json(record.schedule),
            "seconds": None if record is None else record.seconds,
            "default_seconds": None if record is None else record.default_seconds,
            "floor_seconds": None if record is None else record.floor_seconds,
            "gain": self.gain,
            "problem": self.problem,
        }

    @property
    def failures(self) -> dict[str, int]:
        """Why candidates had no time, and how many."""
        return dict(Counter(t.reason.split("\n")[0] for t in self.tried if t.seconds is None))


@dataclass(frozen=True)
class TuneReport:
    """All tasks, those first that cost most."""

    rows: tuple[TuneRow, ...]
    device: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        counts = Counter(row.state for row in self.rows)
        tasks = [row.to_json() for row in self.rows]
        return {"device": self.device, "states": dict(counts), "tasks": tasks}

    def __str__(self) -> str:
        heads = ("kernel", "sizes", "launches", "tried", "default", "best", "gain", "of floor")
        lines = [_line(heads)]
        for row in self.rows:
            record = row.record
            cells = [row.task.kernel.template, _sizes(row), str(row.task.count)]
            if record is None:
                lines.append(f"{_line(cells)}  {row.state}")
                lines += [f"    {line}" for line in row.problem.splitlines()]
                continue
            cells += [str(record.tried), _micros(record.default_seconds), _micros(record.seconds)]
            cells += [f"{row.gain:.2f}x", f"{row.share:.0%}"]
            is_same = record.schedule == row.task.default
            won = "the default" if is_same else str(record.schedule)
            lines.append(f"{_line(cells)}  {won}{', kept' if row.was_kept else ''}")
            lines += [f"    {n} x {reason}" for reason, n in row.failures.items()]
        counts = Counter(row.state for row in self.rows)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        return "\n".join([*lines, f"{len(self.rows)} tasks on {self.device}: {told or 'none'}"])


def _sizes(row: TuneRow) -> str:
    """The bucket, or that there is but one."""
    return "any" if row.key.bucket == "0.." else row.key.bucket


_WIDTHS = (10, 12, 8, 5, 10, 10, 6, 8)


def _line(cells: Any) -> str:
    left, *right = zip(cells, _WIDTHS)
    return "  ".join([f"{left[0]:<{left[1]}}", *(f"{cell:>{width}}" for cell, width in right)])


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
