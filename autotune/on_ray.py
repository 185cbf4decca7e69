"""Tasks of tuning on many devices, taken there by Ray."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ..ir.errors import DeviceError, OptionError, TilewrightError
from ..ir.progress import Progress
from .bench import Bench, Budget, Outcomes, attempt, clock, shares
from .key import Key
from .task import Task, TaskOutcome
from .tasks import weight

POLL_SECONDS = 0.5


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
    tasks: Mapping[Key, Task],
    bench: Bench,
    budget: Budget,
    devices: int,
    progress: Progress,
) -> Outcomes:
    """One task a device at a time. Results come as they are done; late ones are given up.

    A machine that is lost takes its task with it, not the others.
    """
    if not tasks:
        return
    ray = require_ray()
    is_gpu = next(iter(tasks.values())).target.is_gpu
    # on a CPU a task has the whole machine: beside another one times mean nothing
    needs = {"num_gpus": 1} if is_gpu else {"num_cpus": _cpus(ray)}
    remote = ray.remote(max_retries=0, **needs)(_remote)
    end = time.monotonic() + budget.seconds
    weights = {key: weight(task) for key, task in tasks.items()}
    seconds = shares(weights, budget.seconds * min(devices, len(tasks)))
    running = {
        remote.remote(task, bench, budget, min(seconds[key], budget.seconds)): key
        for key, task in tasks.items()
    }
    with clock(progress, budget.seconds):
        while running and time.monotonic() < end:
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                key = running.pop(reference)
                try:
                    yield key, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield key, DeviceError("a task was lost", facts=str(error).splitlines()[0])
    for reference in running:
        ray.cancel(reference, force=True)


def _cpus(ray: Any) -> int:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return int(min(node["Resources"].get("CPU", 1) for node in nodes))


def _remote(
    task: Task, bench: Bench, budget: Budget, seconds: float
) -> TaskOutcome | TilewrightError:
    """What runs on the other machine."""
    with closing(bench.tuner(bench.open(), budget.workers)) as tuner:
        return attempt(tuner, task, budget, seconds)
