"""What tuning did: what was tried, what won, by how much, and how far it is from the floor."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
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
            "candidates": [
                {
                    "schedule": schedule_to_json(tried.schedule),
                    "seconds": tried.seconds,
                    "reason": tried.reason,
                }
                for tried in self.tried
            ],
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
        lines = []
        for _, rows in groupby(self.rows, key=lambda row: row.key.family):
            for number, row in enumerate(rows):
                if number == 0:
                    shapes = " ".join(dict.fromkeys(_SHAPE.findall(row.key.layout)))
                    lines.append(f"{row.task.kernel.template} x {row.task.count} on {shapes}")
                lines += [f"  {line}" for line in _lines(row)]
        counts = Counter(row.state for row in self.rows)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        return "\n".join([*lines, f"{len(self.rows)} tasks on {self.device}: {told or 'none'}"])


_SHAPE = re.compile(r"\[[^]]*\]")


def _lines(row: TuneRow) -> list[str]:
    sizes = "any size" if row.key.bucket == "0.." else f"sizes {row.key.bucket}"
    record = row.record
    if record is None:
        return [f"{sizes:<20}{row.state}", *(f"  {line}" for line in row.problem.splitlines())]
    default, best = (f"{s * 1e6:.1f}" for s in (record.default_seconds, record.seconds))
    return [
        f"{sizes:<20}{record.tried:>4} tried{default:>11} -> {best:>9} us{row.gain:>7.2f}x"
        f"{row.share:>6.0%} of the floor's speed  {_winner(row)}{', kept' if row.was_kept else ''}",
        *(f"  {count} had no time: {reason}" for reason, count in row.failures.items()),
    ]


def _winner(row: TuneRow) -> str:
    """The schedule, by what of the default one it changes."""
    assert row.record is not None
    old, new = schedule_to_json(row.task.default), schedule_to_json(row.record.schedule)
    if old["kind"] != new["kind"]:
        return str(row.record.schedule)
    changed = [
        f"{name} {old[name]} -> {value}" for name, value in new.items() if old[name] != value
    ]
    return ", ".join(changed) or "the default"
