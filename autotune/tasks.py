"""What there is to tune in a graph: the kernels of its program, without building any."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..codegen.backend import Backend, GroupLaunch, GroupLaunches, Variant
from ..codegen.build import build
from ..codegen.cpp import emit as cpp
from ..codegen.loops import LoopKernel
from ..codegen.templates import Bucket, choices, template_with
from ..ir.dim import Dim, evaluate
from ..ir.graph import Graph
from ..ir.layout import KVLayout
from ..ir.program import Kernel
from ..ir.target import Target
from .key import Key, key_of
from .task import Task


def default_buckets(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """Which schedule an untuned kernel has for which size."""
    return choices(kernel, target) if target.is_gpu else cpp.choices(kernel)


def tasks_of(graph: Graph, target: Target, kv: KVLayout | None = None) -> dict[Key, Task]:
    """A task for each bucket of each distinct kernel that has a choice, those that cost most first.

    `graph` is as passes left it; kernels that differ in names only are one, launched more often.
    """
    found = _Collector(target)
    build(graph, target, kv=kv, backend=found)
    return _ordered(found.tasks)


def merged_tasks(several: Iterable[Mapping[Key, Task]]) -> dict[Key, Task]:
    """The tasks of several programs, those that cost most first."""
    made: dict[Key, Task] = {}
    for tasks in several:
        for key, task in tasks.items():
            made[key] = _more(made[key], task.count) if key in made else task
    return _ordered(made)


def _ordered(tasks: Mapping[Key, Task]) -> dict[Key, Task]:
    """By cost; the second bucket of a kernel counts half of the first, the third a third.

    So a short budget reaches the first sizes of many kernels, not all sizes of one.
    """
    begins: dict[str, list[int]] = {}
    for key, task in tasks.items():
        begins.setdefault(key.family, []).append(task.lo)

    def place(item: tuple[Key, Task]):
        key, task = item
        before = sum(lo < task.lo for lo in begins[key.family])
        return -weight(task) / (1 + before), key.family, task.lo

    return dict(sorted(tasks.items(), key=place))


def weight(task: Task) -> float:
    """Seconds that the kernel takes at least in a run of its program, at likely sizes."""
    return floor_seconds(task.kernel, task.target, task.kernel.hints) * task.count


def floor_seconds(kernel: LoopKernel, target: Target, sizes: Mapping[str, int]) -> float:
    """The least that the target takes for the kernel's bytes and operations at these sizes."""
    template = template_with(kernel.parts[0])
    traffic = evaluate(template.traffic(kernel), sizes)
    operations = evaluate(sum(map(template.operations, kernel.parts)), sizes)
    return target.seconds(traffic, operations, *template.products(kernel.parts[0]))


def _more(task: Task, count: int) -> Task:
    return replace(task, count=task.count + count)


class _Collector(Backend):
    """Stands in for a language's back end, and notes the kernels it is given."""

    def __init__(self, target: Target):
        self.target = target
        self.tasks: dict[Key, Task] = {}
        self._keys: dict[str, list[Key]] = {}  # by the kernel's key in this program

    def launches(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        """Counts the launch. What it says of the launch has no kernel behind it."""
        if key not in self._keys:
            self._keys[key] = self._note(kernel)
        for each in self._keys[key]:
            self.tasks[each] = _more(self.tasks[each], 1)
        nothing = Variant("", tuple(range(len(kernel.params))), ())
        return GroupLaunches((GroupLaunch((nothing,)),), {})

    def finish(self) -> tuple[Mapping[str, Kernel], Mapping[str, bytes]]:
        """Nothing was made."""
        return {}, {}

    def _note(self, kernel: LoopKernel) -> list[Key]:
        size, buckets = default_buckets(kernel, self.target)
        found: list[Key] = []
        for lo, hi, schedule in buckets:
            if schedule.domain:
                key = key_of(kernel, self.target).at(lo, hi)
                task = Task(kernel, self.target, size, lo, hi, schedule, count=0)
                self.tasks.setdefault(key, task)
                found.append(key)
        return found
