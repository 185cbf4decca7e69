"""What tuning is asked and what it answers: one bucket of one kernel at a time."""

from dataclasses import dataclass

from ..codegen.loops import LoopKernel
from ..codegen.templates.template import Schedule
from ..ir.dim import Dim
from ..ir.target import Target


@dataclass(frozen=True)
class Task:
    """A kernel where lo <= size (<= hi when given); `default` is the schedule it has untuned.

    `count`: how often a program launches it.
    """

    kernel: LoopKernel
    target: Target
    size: Dim
    lo: int
    hi: int | None
    default: Schedule
    count: int = 1


@dataclass(frozen=True)
class Tried:
    """A candidate: its median seconds, or the reason why it has none."""

    schedule: Schedule
    seconds: float | None
    reason: str = ""


@dataclass(frozen=True)
class TaskOutcome:
    """What became of a task. The seconds are of one launch at the size measured.

    `winner` is the default where nothing was better, and where time ran out before anything was
    measured: then `seconds` and `default_seconds` are None. `floor_seconds`: the least that the
    target takes for the kernel's bytes and operations.
    """

    task: Task
    winner: Schedule
    seconds: float | None
    default_seconds: float | None
    floor_seconds: float
    tried: tuple[Tried, ...]
    was_cut: bool = False  # time was over before the search was
