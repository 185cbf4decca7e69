"""Tasks of tuning on many devices, taken there by Ray."""

import time
from collections.abc import Mapping
from typing import Any

from ..ir.errors import DeviceError, OptionError, TilewrightError
from ..ir.progress import Progress
from .bench import Bench, Budget, Outcomes, attempt, clock, share_of
from .key import Key
from .task import Task, TaskOutcome
from .tasks import weight

POLL_SECONDS = 0.5
LATE_SECONDS = 15.0  # after the budget is over, for results that are nearly done


def require_ray() -> Any:
    """The module ray. OptionError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise OptionError(
            "--ray needs the package ray",
            facts=str(error),
            fix="pip install 'tilewright[ray]', or leave --ray out to tune on this machine alone",
        ) from None
    return ray


def devices_of(is_gpu: bool) -> int:
    """How many devices Ray reaches: GPUs, or machines. Starts or joins its cluster.

    DeviceError where there is none.
    """
    ray = require_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    count = sum(int(node["Resources"].get("GPU", 0)) if is_gpu else 1 for node in nodes)
    if count == 0:
        raise DeviceError(
            "Ray knows no GPU",
            facts=f"{len(nodes)} machines are in its cluster",
            fix="start Ray with --num-gpus where they are, or leave --ray out",
        )
    return count


def outcomes_on_ray(
    tasks: Mapping[Key, Task], bench: Bench, budget: Budget, devices: int, progress: Progress
) -> Outcomes:
    """One task a device at a time. Results come as they are done; late ones are given up.

    A process that is lost takes its task with it, not the others.
    """
    ray = require_ray()
    is_gpu = next(iter(tasks.values())).target.is_gpu
    # on a CPU a task has the whole machine: beside another one times mean nothing
    needs = {"num_gpus": 1} if is_gpu else {"num_cpus": _cpus(ray)}
    kind = ray.remote(**needs)(_Remote)
    idle = [kind.remote(bench, budget) for _ in range(min(devices, len(tasks)))]
    count = len(idle)
    left = {key: weight(task) for key, task in tasks.items()}
    running: dict[Any, tuple[Key, Any]] = {}
    end = time.monotonic() + budget.seconds
    with clock(progress, budget.seconds):
        while (seconds := end - time.monotonic()) > -LATE_SECONDS:
            while idle and left and seconds > 0:
                key, actor = next(iter(left)), idle.pop()
                share = share_of(key, left, seconds * count)
                running[actor.tune.remote(tasks[key], min(share, seconds))] = key, actor
                del left[key]
            if not running:
                break
            for reference in ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)[0]:
                key, actor = running.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    outcome = DeviceError("a task was lost", facts=str(error).splitlines()[0])
                    actor = kind.remote(bench, budget)
                idle.append(actor)
                yield key, outcome
    for actor in (*idle, *(actor for _, actor in running.values())):
        ray.kill(actor)


class _Remote:
    """What runs where a device is; it is ended with its process."""

    def __init__(self, bench: Bench, budget: Budget):
        self.tuner, self.budget = bench.tuner(bench.open(), budget.workers), budget

    def tune(self, task: Task, seconds: float) -> TaskOutcome | TilewrightError:
        return attempt(self.tuner, task, self.budget, seconds)


def _cpus(ray: Any) -> int:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return int(min(node["Resources"].get("CPU", 1) for node in nodes))
