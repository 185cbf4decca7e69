"""Tunes task after task on one device, with processes that outlive a task."""

from ..runtime.device import Device
from .search import Tools, tune_kernel
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

    def close(self) -> None:
        """End the processes."""
        self.tools.close()
