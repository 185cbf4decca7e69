"""The tuner that measures, on the CPU: a task, and both sides of a border."""

from contextlib import closing

from tilewright.autotune.tasks import tasks_of
from tilewright.autotune.tuner import KernelTuner
from tilewright.codegen.cpp.schedules import RunSchedule, TileSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.target import cpu
from tilewright.runtime.cpu import CpuDevice


def test_it_measures_schedules_at_a_size_and_searches_a_task():
    b = Builder("g")
    s = b.dim("s", 1, 40)
    x = b.input("x", (s, 48))
    tasks = tasks_of(b.graph([b.matmul(x, b.weight("w", (48, 32)))]), cpu())
    task = next(task for task in tasks.values() if task.lo == 2)
    schedules = TileSchedule(), TileSchedule(panels=1)
    with closing(KernelTuner(CpuDevice(), 1)) as tuner:
        times = tuner.times(task, 7, schedules, seed=0)
        assert times is not None
        assert len(times) == 2
        assert all(0 < seconds < 60 for seconds in times)
        assert tuner.times(task, 41, schedules, seed=0) is None  # the dim ends at 40
        assert tuner.times(task, 7, (TileSchedule(), RunSchedule()), seed=0) is None
        found = tuner(task, seconds=0.5, seed=0)
    assert found.task is task
    assert found.tried[0].schedule == task.default
    assert found.default_seconds is not None
    assert isinstance(found.winner, TileSchedule)
