"""Recorded schedules in place of the default ones, wherever a program is built."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path

from ..codegen.loops import LoopKernel
from ..codegen.templates.template import Bucket, Schedule
from ..ir.dim import Dim
from ..ir.report import Findings
from ..ir.target import Target
from . import model
from .bucket_sizes import bucket_sizes
from .kernel_facts import KernelFacts
from .key import PARTS, Key, differences, key_of, target_text
from .record import ScheduleRecord, parse_lines
from .record_file import lines_of
from .tasks import default_buckets

SHOWN = 100  # characters of a part of a key that are shown where it changed


@dataclass(frozen=True)
class Miss:
    """A bucket without a record: what is nearest among the records, and how its key differs."""

    key: Key
    nearest: Key | None

    @property
    def changed(self) -> tuple[str, ...]:
        """The parts of the key that differ from the nearest record's; all where there is none."""
        return PARTS if self.nearest is None else differences(self.key, self.nearest)

    @property
    def brief(self) -> str:
        """Which parts differ, without how."""
        if self.nearest is None:
            return "nothing like it is recorded"
        if not self.changed:
            return "what is recorded does not fit"
        return f"the nearest record differs in {', '.join(self.changed)}"

    def __str__(self) -> str:
        if self.nearest is None or not self.changed:
            return self.brief
        told = []
        for part in self.changed:
            old, new = getattr(self.nearest, part), getattr(self.key, part)
            is_short = max(len(old), len(new)) <= SHOWN and "\n" not in old + new
            told.append(f"{part} ({old} is recorded, this is {new})" if is_short else part)
        return f"the nearest record differs in {', '.join(told)}"


@dataclass
class RecordedSchedules:
    """Schedules by records, for one target; `findings` collects which kernels had one.

    Of records for the same sizes those that come later in `records` are taken, and of one size the
    narrower bucket's.
    """

    records: Sequence[ScheduleRecord]
    target: Target
    findings: Findings = field(default_factory=Findings)
    misses: list[Miss] = field(default_factory=list)

    @cached_property
    def families(self) -> dict[str, list[ScheduleRecord]]:
        """The records of the target by family of key."""
        found: dict[str, list[ScheduleRecord]] = {}
        text = target_text(self.target)
        for record in self.records:
            if record.key.target == text:
                found.setdefault(record.key.family, []).append(record)
        return found

    def buckets(
        self, kernel: LoopKernel, target: Target, size: Dim, default: list[Bucket]
    ) -> list[Bucket]:
        """The default buckets, with what is recorded of their sizes put in place."""
        if not any(schedule.domain for *_, schedule in default):
            return default
        key = key_of(kernel, target)
        table, taken = default, []
        for record in self.families.get(key.family, ()):
            if not fits(record.schedule, kernel, target, size, *record.key.bounds):
                self.findings.decline(kernel.template, f"{record.schedule} does not fit")
                continue
            taken.append(record)
            table = overlaid(table, *record.key.bounds, record.schedule)
        for lo, hi, schedule in default:
            if not schedule.domain:
                continue
            if any(overlap(record, lo, hi) for record in taken):
                self.findings.fire(kernel.template)
            else:
                self._miss(kernel, key.at(lo, hi))
        return table

    def _miss(self, kernel: LoopKernel, key: Key) -> None:
        miss = Miss(key, nearest(key, self.records))
        self.misses.append(miss)
        self.findings.decline(kernel.template, miss.brief)


def fits(
    schedule: Schedule, kernel: LoopKernel, target: Target, size: Dim, lo: int, hi: int | None
) -> bool:
    """Whether a schedule is one for the kernel at these sizes: a file may say anything."""
    kinds = {type(other) for *_, other in default_buckets(kernel, target)[1]}
    return type(schedule) in kinds and all(
        model.seconds(KernelFacts(kernel, sizes, target), schedule) is not None
        for sizes in bucket_sizes(kernel, size, lo, hi)
    )


def overlap(record: ScheduleRecord, lo: int, hi: int | None) -> bool:
    """Whether a record's bucket has sizes in common with [lo, hi]."""
    first, last = record.key.bounds
    return (hi is None or first <= hi) and (last is None or last >= lo)


def overlaid(table: list[Bucket], lo: int, hi: int | None, schedule: Schedule) -> list[Bucket]:
    """The table with `schedule` at those of its sizes that are in [lo, hi]."""
    made: list[Bucket] = []
    for first, last, other in table:
        begin = max(first, lo)
        end = last if hi is None else hi if last is None else min(last, hi)
        if end is not None and end < begin:
            made.append((first, last, other))
            continue
        if first < begin:
            made.append((first, begin - 1, other))
        made.append((begin, end, schedule))
        if end is not None and (last is None or last > end):
            made.append((end + 1, last, other))
    return made


def nearest(key: Key, records: Iterable[ScheduleRecord]) -> Key | None:
    """The recorded key that differs least: in the fewest parts, in the fewest lines and words.

    None where no kernel of this template is recorded.
    """
    near = {record.key for record in records if record.key.template == key.template}
    parts = {other: len(differences(key, other)) for other in near}
    fewest = [other for other, count in parts.items() if count == min(parts.values())]

    def distance(other: Key) -> tuple[int, str]:
        lines = (set(re.split(r"\n|, ", "\n".join(astuple(each)))) for each in (key, other))
        return len(set.symmetric_difference(*lines)), other.digest

    return min(fewest, key=distance, default=None)


def load(path: Path | None, target: Target, *, near: bool = False) -> RecordedSchedules:
    """Shipped records, and those of a file above them.

    `near`: those of other targets as well, so that a miss can tell how near they are.
    """
    named = ("shipped records", str(path))
    layers = map(parse_lines, lines_of(path, None if near else target.name), named)
    # wider buckets first, so that narrower ones are put over them; of one key the latest last
    ordered = [sorted(layer, key=lambda r: (-_width(r), r.key.digest, r.when)) for layer in layers]
    return RecordedSchedules([record for layer in ordered for record in layer], target)


def _width(record: ScheduleRecord) -> float:
    lo, hi = record.key.bounds
    return float("inf") if hi is None else hi - lo
