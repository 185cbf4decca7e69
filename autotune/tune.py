"""Tunes the kernels of a model within a budget: tasks in, records and a report out."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from ..codegen.templates.template import Schedule
from ..ir.errors import TilewrightError
from ..ir.progress import Progress, unwatched
from .bench import Bench, Budget, Outcomes, opened
from .borders import Moved, moved_borders
from .key import Key
from .on_ray import outcomes_on_ray
from .record import ScheduleRecord, parse_lines
from .record_file import RecordFile
from .task import Task, TaskOutcome
from .tasks import floor_seconds
from .tune_report import TuneReport, TuneRow


def tune(
    tasks: Mapping[Key, Task],
    bench: Bench,
    file: RecordFile,
    budget: Budget,
    *,
    resume: bool = False,
    on_devices: int | None = None,
    progress: Progress = unwatched,
) -> TuneReport:
    """Tune the tasks, those that cost most first, and keep each result in the file at once.

    With `resume` what the file has is left as it is. `on_devices`: Ray takes the tasks to as many
    devices; None tunes here. What the budget does not reach has no record: the report says so.
    """
    known = parse_lines(file.lines(), str(file.path))
    kept = {record.key.digest: record for record in known} if resume else {}
    rows = {
        key: TuneRow(key, task, kept.get(key.digest), was_kept=key.digest in kept)
        for key, task in tasks.items()
    }
    left = {key: task for key, task in tasks.items() if not rows[key].was_kept}

    def take(outcomes: Outcomes) -> None:
        for key, outcome in outcomes:
            if isinstance(outcome, TilewrightError):
                rows[key] = TuneRow(key, tasks[key], problem=str(outcome))
                continue
            record = record_of(key, outcome, bench)
            if record is not None:
                file.add([record.stored], instead_of=within(key, known))
            rows[key] = TuneRow(key, tasks[key], record, outcome.tried)

    if left and on_devices is not None:
        take(outcomes_on_ray(left, bench, budget, on_devices, progress))
    elif left:
        with opened(bench, budget, progress) as session:
            take(session.outcomes(left))
            for moved in moved_borders(tuple(rows.values()), session):
                record = record_of_border(moved, bench)
                file.add([record.stored])
                rows[moved.key] = TuneRow(moved.key, moved.task, record)
    families = list(dict.fromkeys(key.family for key in rows))
    ordered = sorted(rows.values(), key=lambda r: (families.index(r.key.family), r.task.lo))
    return TuneReport(tuple(ordered), bench.name)


def within(key: Key, records: Iterable[ScheduleRecord]) -> list[str]:
    """Digests of the records for part of the key's bucket, which would hide a new one for all."""
    lo, hi = key.bounds
    found = []
    for other in (record.key for record in records if record.key.family == key.family):
        first, last = other.bounds
        is_inside = first >= lo and (hi is None or (last is not None and last <= hi))
        found += [other.digest] if is_inside and other != key else []
    return found


def record_of(key: Key, outcome: TaskOutcome, bench: Bench) -> ScheduleRecord | None:
    """What is kept of an outcome; None where there was no time to measure anything but the default.

    So `resume` comes back to it.
    """
    is_alone = outcome.was_cut and len(outcome.tried) < 2
    if is_alone or outcome.seconds is None or outcome.default_seconds is None:
        return None
    times = outcome.seconds, outcome.default_seconds, outcome.floor_seconds
    return _record(key, outcome.winner, times, len(outcome.tried), bench)


def record_of_border(moved: Moved, bench: Bench) -> ScheduleRecord:
    """What is kept of sizes that a neighbour's schedule took over."""
    floor = floor_seconds(moved.task.kernel, moved.task.target, moved.sizes)
    times = moved.seconds, moved.own_seconds, floor
    return _record(moved.key, moved.schedule, times, 2, bench)


def _record(
    key: Key, schedule: Schedule, times: tuple[float, float, float], tried: int, bench: Bench
) -> ScheduleRecord:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return ScheduleRecord(key, schedule, *times, tried, now, bench.name, dict(bench.versions))
