"""Tunes the kernels of a model within a budget: tasks in, records and a report out."""

from collections.abc import Mapping
from datetime import UTC, datetime

from ..ir.errors import TilewrightError
from ..ir.progress import Progress, unwatched
from .bench import Bench, Budget, outcomes_here
from .key import Key
from .on_ray import outcomes_on_ray
from .record import ScheduleRecord, parse_lines
from .record_file import RecordFile
from .task import Task, TaskOutcome
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
    known = {r.key.digest: r for r in parse_lines(file.lines(), str(file.path))}
    rows = {key: TuneRow(key, task) for key, task in tasks.items()}
    left = dict(tasks)
    if resume:
        for key in [key for key in tasks if key.digest in known]:
            rows[key] = TuneRow(key, left.pop(key), record=known[key.digest], was_kept=True)
    if on_devices is None:
        outcomes = outcomes_here(left, bench, budget, progress)
    else:
        outcomes = outcomes_on_ray(left, bench, budget, on_devices, progress)
    for key, outcome in outcomes:
        if isinstance(outcome, TilewrightError):
            rows[key] = TuneRow(key, tasks[key], problem=str(outcome))
        else:
            record = record_of(key, outcome, bench)
            if record is not None:
                file.add([record.stored])
            rows[key] = TuneRow(key, tasks[key], record=record, tried=outcome.tried)
    return TuneReport(tuple(rows.values()), bench.name)


def record_of(key: Key, outcome: TaskOutcome, bench: Bench) -> ScheduleRecord | None:
    """What is kept of an outcome; None where nothing was measured."""
    if outcome.seconds is None or outcome.default_seconds is None:
        return None
    now = datetime.now(UTC)
    return ScheduleRecord(
        key,
        outcome.winner,
        outcome.seconds,
        outcome.default_seconds,
        outcome.floor_seconds,
        len(outcome.tried),
        now.isoformat(timespec="microseconds"),
        bench.name,
        dict(bench.versions),
    )
