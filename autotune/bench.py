"""Where tasks run and how the time is shared among them; here, one after another."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..ir.errors import TilewrightError
from ..ir.progress import Progress
from ..runtime.device import Device
from .key import Key
from .task import Task, TaskOutcome
from .tasks import weight

EVEN = 0.5  # of the budget is shared evenly, the rest by what kernels cost


class TuneTask(Protocol):
    """Finds the fastest schedule for a task within a time."""

    def __call__(
        self,
        task: Task,
        device: Device,
        *,
        seconds: float,
        workers: int,
        seed: int,
        progress: Progress,
    ) -> TaskOutcome: ...


@dataclass(frozen=True)
class Bench:
    """Where is measured: how to open the device, its name, versions of what compiles for it."""

    open: Callable[[], Device]
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


def outcomes_here(
    tasks: Mapping[Key, Task],
    bench: Bench,
    budget: Budget,
    tune_task: TuneTask,
    progress: Progress,
) -> Outcomes:
    """One after another on one device; what a task leaves of its time goes to those that follow."""
    if not tasks:
        return
    end = time.monotonic() + budget.seconds
    device = bench.open()
    left = {key: weight(task) for key, task in tasks.items()}
    watched = timed(progress, budget.seconds)
    while left:
        watched("tune", 0, 1)
        remaining = end - time.monotonic()
        if remaining <= 0:
            return
        key = next(iter(left))
        seconds = shares(left, remaining)[key]
        del left[key]
        yield key, attempt(tune_task, tasks[key], device, budget, seconds, watched)


def attempt(
    tune_task: TuneTask,
    task: Task,
    device: Device,
    budget: Budget,
    seconds: float,
    progress: Progress,
) -> TaskOutcome | TilewrightError:
    """The outcome, or the error that there was instead: other tasks go on."""
    try:
        return tune_task(
            task,
            device,
            seconds=seconds,
            workers=budget.workers,
            seed=budget.seed,
            progress=progress,
        )
    except TilewrightError as error:
        return error


def timed(progress: Progress, seconds: float) -> Progress:
    """A `Progress` that tells, whatever it hears, how much of the time has gone."""
    begin, whole = time.monotonic(), max(round(seconds), 1)

    def show(stage: str, done: int, of: int) -> None:
        progress("tune", min(int(time.monotonic() - begin), whole), whole)

    return show
