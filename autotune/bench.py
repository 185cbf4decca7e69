"""Where tasks run and how the time is shared among them; here, one after another."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ..codegen.templates.template import Schedule
from ..ir.errors import TilewrightError
from ..ir.progress import Progress
from ..runtime.device import Device
from .key import Key
from .task import Task, TaskOutcome
from .tasks import weight

TICK_SECONDS = 1.0
BORDERS = 0.125  # of the budget is left for borders of buckets
LEAST_SECONDS = 5.0  # of a task: less is spent on its data and its default schedule
EVEN = 0.5  # of the budget is shared evenly, the rest by what kernels cost


class Tuner(Protocol):
    """Finds the fastest schedules on one device, until it is closed."""

    def __call__(self, task: Task, *, seconds: float, seed: int) -> TaskOutcome: ...

    def times(
        self, task: Task, size: int, schedules: Sequence[Schedule], *, seed: int
    ) -> list[float] | None:
        """Seconds of a launch at one size, measured in turn; None where one does not run there."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Bench:
    """Where is measured: how to open the device, what tunes on it, and their names.

    `tuner` is given the device and the number of processes that compile. `versions` are those of
    what compiles for the device.
    """

    open: Callable[[], Device]
    tuner: Callable[[Device, int], Tuner]
    name: str
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """Seconds for all tasks, processes that compile, and the seed of what is drawn."""

    seconds: float
    workers: int = 1
    seed: int = 0


# what became of tasks, in any order
Outcomes = Iterator[tuple[Key, TaskOutcome | TilewrightError]]


def shares(weights: Mapping[Key, float], seconds: float) -> dict[Key, float]:
    """How long each task may take: part of the time is shared evenly, part by what they cost."""
    total = sum(weights.values()) or 1.0
    even = EVEN / len(weights)
    return {key: seconds * (even + (1 - EVEN) * cost / total) for key, cost in weights.items()}


def share_of(key: Key, weights: Mapping[Key, float], seconds: float) -> float:
    """How long the task of `key` may take: its share, but enough to compare a few schedules."""
    return max(shares(weights, seconds)[key], min(LEAST_SECONDS, seconds))


@dataclass(frozen=True)
class Session:
    """A device that is open for the time of a budget."""

    tuner: Tuner
    budget: Budget
    end: float  # by time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Of the budget; below 0 once it is over."""
        return self.end - time.monotonic()

    def times(self, task: Task, size: int, schedules: Sequence[Schedule]) -> list[float] | None:
        """As the tuner has it; None as well where measuring failed."""
        try:
            return self.tuner.times(task, size, schedules, seed=self.budget.seed)
        except TilewrightError:
            return None

    def outcomes(self, tasks: Mapping[Key, Task]) -> Outcomes:
        """One after another; what a task leaves of its time goes to those that follow."""
        left = {key: weight(task) for key, task in tasks.items()}
        kept = BORDERS * self.budget.seconds
        while left and (seconds := self.seconds_left - kept) > 0:
            key = next(iter(left))
            share = share_of(key, left, seconds)
            del left[key]
            yield key, attempt(self.tuner, tasks[key], self.budget, share)


@contextmanager
def opened(bench: Bench, budget: Budget, progress: Progress) -> Iterator[Session]:
    """The bench's device here; `progress` hears each second how much of the time has gone."""
    end = time.monotonic() + budget.seconds
    with (
        clock(progress, budget.seconds),
        closing(bench.tuner(bench.open(), budget.workers)) as tuner,
    ):
        yield Session(tuner, budget, end)


def attempt(
    tuner: Tuner, task: Task, budget: Budget, seconds: float
) -> TaskOutcome | TilewrightError:
    """The outcome, or the error that there was instead: other tasks go on."""
    try:
        return tuner(task, seconds=seconds, seed=budget.seed)
    except TilewrightError as error:
        return error


@contextmanager
def clock(progress: Progress, seconds: float) -> Iterator[None]:
    """Tells `progress`, each second while the block runs, how much of the time has gone."""
    begin, whole, ended = time.monotonic(), max(round(seconds), 1), threading.Event()

    def tell() -> None:
        while True:
            progress("tune", min(int(time.monotonic() - begin), whole), whole)
            if ended.wait(TICK_SECONDS):
                return

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
