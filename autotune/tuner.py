"""Tunes task after task on one device, with processes that outlive a task."""

from collections.abc import Sequence
from dataclasses import replace

from ..codegen.templates.template import Schedule
from ..ir.dim import evaluate
from ..runtime.device import Device
from .bucket_sizes import bucket_sizes
from .measure import settled
from .search import DeviceTrial, Tools, tune_kernel
from .strategy import FINAL_ROUNDS
from .task import Task, TaskOutcome


class KernelTuner:
    """A `Tuner` that measures; `workers` processes compile for it."""

    def __init__(self, device: Device, workers: int):
        self.device, self.workers = device, workers
        self.tools = Tools(device, workers)

    def __call__(self, task: Task, *, seconds: float, seed: int) -> TaskOutcome:
        """See `search.tune_kernel`."""
        return tune_kernel(
            task,
            self.device,
            seconds=seconds,
            workers=self.workers,
            seed=seed,
            tools=self.tools,
        )

    def times(
        self, task: Task, size: int, schedules: Sequence[Schedule], *, seed: int
    ) -> list[float] | None:
        """Medians of seconds at one size; None where it is none of the kernel's, or one fails."""
        at = replace(task, lo=size, hi=size, default=schedules[0])
        sizes = bucket_sizes(at.kernel, at.size, size, size)[0]
        if evaluate(at.size, sizes) != size:
            return None
        trial = DeviceTrial(at, self.tools, seed)
        if any(trial.ready(schedules)):
            return None
        (rounds, *_) = trial.seconds(schedules, FINAL_ROUNDS)
        return [timing.seconds for timing in settled(rounds)]

    def close(self) -> None:
        """End the processes."""
        self.tools.close()
