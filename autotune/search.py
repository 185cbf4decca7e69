"""Tunes one task on a device: candidates are compiled, checked and measured in other processes."""

import time
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from ..codegen.templates.template import Schedule
from ..ir.errors import DeviceError
from ..ir.progress import Progress, unwatched
from ..runtime.device import Device
from .bucket_sizes import bucket_sizes
from .candidate import CompiledCandidate, Compiler
from .measure import Meter
from .remote import Failure, Remote, RemotePool
from .strategy import Search
from .task import Task, TaskOutcome

COMPILE_SECONDS = 120.0  # of a candidate
RUN_SECONDS = 30.0  # of loading and checking one; over it, it hangs
PREPARE_SECONDS = 300.0  # of making data, and what the reference says of it
MEASURE_SECONDS = 300.0  # of one call that measures


class Tools:
    """The processes that tuning needs: they outlive a task, and are ended by `close`.

    `workers` is how many candidates are compiled at a time.
    """

    def __init__(self, device: Device, workers: int):
        self.compilers = RemotePool(workers, Compiler)
        self.meter = Remote(Meter, device.name)

    def close(self) -> None:
        """End the processes."""
        self.compilers.close()
        self.meter.close()


def tune_kernel(
    task: Task,
    device: Device,
    *,
    seconds: float,
    workers: int,
    seed: int = 0,
    progress: Progress = unwatched,
    tools: Tools | None = None,
) -> TaskOutcome:
    """Search the schedules of a task for about so many seconds.

    `progress` hears how many candidates were tried. Without `tools` there are some for this task
    alone. DeviceError where a process of its own cannot use the device.
    """
    if tools is None:
        with closing(Tools(device, workers)) as own:
            return tune_kernel(
                task, device, seconds=seconds, workers=workers, seed=seed, progress=progress,
                tools=own,
            )  # fmt: skip
    trial = DeviceTrial(task, tools, seed)
    return Search(task, trial, time.monotonic() + seconds, seed, progress).run()


class DeviceTrial:
    """See `strategy.Trial`."""

    def __init__(self, task: Task, tools: Tools, seed: int):
        self.task, self.tools, self.seed = task, tools, seed
        self.sizes = bucket_sizes(task.kernel, task.size, task.lo, task.hi)
        # those that are good, and their numbers
        self.built: dict[Schedule, tuple[int, CompiledCandidate]] = {}
        self.prepare()

    def prepare(self) -> None:
        """Data, what the reference says, and again those that were good."""
        task, meter = self.task, self.tools.meter
        begun = meter.call(
            "prepare", task.kernel, task.target, self.sizes, self.seed, limit=PREPARE_SECONDS
        )
        if isinstance(begun, Failure):
            raise DeviceError("the device to tune on cannot be used", facts=begun.reason)
        for number, built in self.built.values():
            # what was good before, and the default's results to hold others against
            meter.call("load", number, built, limit=RUN_SECONDS)
            if number == 0:
                meter.call("check", number, limit=RUN_SECONDS)

    def ready(self, schedules: Sequence[Schedule]) -> list[str | None]:
        """Compiled side by side, then checked one by one; who breaks the meter is out."""
        task = self.task
        made = self.tools.compilers.each(
            "build", [(task.kernel, task.target, s) for s in schedules], COMPILE_SECONDS
        )
        return [self._checked(s, built) for s, built in zip(schedules, made)]

    def _checked(self, schedule: Schedule, built: CompiledCandidate | Failure) -> str | None:
        if isinstance(built, Failure):
            return f"not compiled: {built.reason}"
        number, meter = len(self.built), self.tools.meter
        for method, args in (("load", (number, built)), ("check", (number,))):
            found = meter.call(method, *args, limit=RUN_SECONDS)
            if isinstance(found, Failure):
                if found.is_fatal or self.task.target.is_gpu:
                    self.tools.meter.close()  # of a GPU no fault leaves the process fit for more
                    self.prepare()
                return f"not run: {found.reason}"
            if found is not None:
                return f"wrong: {found}"
        self.built[schedule] = number, built
        return None

    def seconds(self, schedules: Sequence[Schedule], rounds: int) -> list[np.ndarray]:
        """See `strategy.Trial`."""
        numbers = [self.built[s][0] for s in schedules]
        found = self.tools.meter.call("time", numbers, rounds, limit=MEASURE_SECONDS)
        if isinstance(found, Failure):
            raise DeviceError("measuring failed", facts=found.reason)
        return [np.array(times) for times in found]
