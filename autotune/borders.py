"""Where one bucket's schedule gives way to the next one's, moved to where their times cross.

The borders of default buckets are guesses. Beside a border the schedules of both sides are
measured: where the other side's is faster there, it takes over as far as it stays so. Then no size
costs more than the next larger one because the wrong schedule runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from ..codegen.templates.template import Schedule
from .bench import Session
from .bucket_sizes import bucket_sizes
from .key import Key
from .measure import TIE
from .task import Task
from .tune_report import TuneRow

PROBES = 5  # sizes of a bucket that are measured, by halving, to find where times cross
FURTHEST = 4  # times its lower end: how far into a bucket without an upper end is looked


@dataclass(frozen=True)
class Moved:
    """Sizes that a neighbour's schedule takes over; seconds are those of a launch at `edge`."""

    key: Key
    task: Task  # of the bucket that gives them up, at these sizes
    schedule: Schedule
    edge: int  # the size beside the old border
    seconds: float
    own_seconds: float

    @property
    def sizes(self) -> dict[str, int]:
        """Of the kernel where it was measured."""
        return bucket_sizes(self.task.kernel, self.task.size, self.edge, self.edge)[0]


def moved_borders(rows: Sequence[TuneRow], session: Session) -> Iterator[Moved]:
    """For each two neighbours of which one was tuned now, while there is time."""
    for _, family in groupby(rows, key=lambda row: row.key.family):
        buckets = sorted((row for row in family if row.record), key=lambda row: row.task.lo)
        for lower, upper in pairwise(buckets):
            if session.seconds_left <= 0:
                return
            assert lower.record is not None
            assert upper.record is not None
            meet = lower.task.hi is not None and lower.task.hi + 1 == upper.task.lo
            is_same = lower.record.schedule == upper.record.schedule
            if meet and not is_same and not (lower.was_kept and upper.was_kept):
                found = _moved(lower, upper, session)
                yield from () if found is None else (found,)


def _moved(lower: TuneRow, upper: TuneRow, session: Session) -> Moved | None:
    """Of the two sides the one that gives up sizes, if one does."""
    assert lower.task.hi is not None
    below = range(lower.task.hi, max(lower.task.lo, 1) - 1, -1)
    above = range(upper.task.lo, (upper.task.hi or FURTHEST * upper.task.lo) + 1)
    return _taken(lower, upper, below, session) or _taken(upper, lower, above, session)


def _taken(own: TuneRow, other: TuneRow, sizes: range, session: Session) -> Moved | None:
    """The sizes, from the border on, at which the other side's schedule is faster."""
    assert own.record is not None
    assert other.record is not None
    task, schedules = own.task, (own.record.schedule, other.record.schedule)
    beside = session.times(task, sizes[0], schedules)
    if beside is None or not _is_faster(beside):
        return None
    low = high = len(sizes) - 1
    if not _is_faster(session.times(task, sizes[-1], schedules)):
        low, high = 0, high - 1  # sizes[low] is taken, what is behind sizes[high] is not
    for _ in range(PROBES):
        middle = (low + high + 1) // 2
        if low >= high or session.seconds_left <= 0:
            break
        if _is_faster(session.times(task, sizes[middle], schedules)):
            low = middle
        else:
            high = middle - 1
    lo: int = min(sizes[0], sizes[low])
    hi: int | None = max(sizes[0], sizes[low])
    if low == len(sizes) - 1:  # as far as was looked
        lo, hi = (task.lo, hi) if sizes.step < 0 else (lo, task.hi)
    given = replace(task, lo=lo, hi=hi)
    return Moved(own.key.at(lo, hi), given, schedules[1], sizes[0], beside[1], beside[0])


def _is_faster(times: list[float] | None) -> bool:
    """Whether the second schedule is, by more than the tie band."""
    return times is not None and TIE * times[1] < times[0]
