"""A device that is a function: times of schedules by a formula, with noise that is drawn."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.autotune.task import Task
from tilewright.codegen.backend import GroupLaunch, GroupLaunches, Variant
from tilewright.codegen.build import build
from tilewright.codegen.templates.template import Schedule
from tilewright.ir.builder import Builder
from tilewright.ir.target import Target, get_target


class Kernels:
    """A back end that keeps the kernels of a graph."""

    def __init__(self):
        self.kernels = {}

    def launches(self, kernel, key):
        self.kernels[key] = kernel
        nothing = Variant("", tuple(range(len(kernel.params))), ())
        return GroupLaunches((GroupLaunch((nothing,)),), {})

    def finish(self):
        return {}, {}


def kernels_of(graph, target: Target):
    """The kernels of a graph's program."""
    found = Kernels()
    build(graph, target, backend=found)
    return list(found.kernels.values())


def product_kernel(n: int, k: int, target: Target, dtype, rows: int = 4096):
    """x @ w^T of up to `rows` rows."""
    b = Builder("g")
    t = b.dim("t", 1, rows, hint=64)
    y = b.matmul(b.input("x", (t, k), dtype), b.weight("w", (n, k), dtype), transpose_w=True)
    (kernel,) = kernels_of(b.graph([y]), target)
    return kernel


SM_90 = get_target("sm_90")


@dataclass
class Simulated:
    """See `strategy.Trial`. `cost` is in seconds; noise is a share of it.

    Now and then a measurement is far off, and whole rounds are slow, as on a machine with other
    work. `broken` says why a schedule cannot win.
    """

    cost: Callable[[Schedule], float]
    seed: int
    noise: float = 0.01
    sizes: int = 1
    broken: Callable[[Schedule], str | None] = lambda schedule: None
    asked: list[Schedule] = field(default_factory=list)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    def ready(self, schedules: Sequence[Schedule]) -> list[str | None]:
        self.asked += schedules
        return [self.broken(s) for s in schedules]

    def seconds(self, schedules: Sequence[Schedule], rounds: int) -> list[np.ndarray]:
        assert all(self.broken(s) is None for s in schedules)
        base = np.array([[self.cost(s)] for s in schedules])
        shape = (len(schedules), rounds)
        made = []
        for _ in range(self.sizes):
            times = base * (1 + self.noise * np.abs(self.rng.standard_normal(shape)))
            times *= 1 + (self.rng.random((1, rounds)) < 0.1) * self.rng.random((1, rounds))
            times *= 1 + 5 * (self.rng.random(shape) < 0.03)
            made.append(times)
        return made


def rough(cost: Callable[[Schedule], float], share: float = 0.2) -> Callable[[Schedule], float]:
    """A cost that no formula has: each schedule is off it by up to a share, always the same."""

    def of(schedule: Schedule) -> float:
        digest = hashlib.sha256(str(schedule).encode()).digest()
        return cost(schedule) * (1 + share * int.from_bytes(digest[:4]) / 2**32)

    return of


def task_of(kernel, target: Target, size, bucket) -> Task:
    lo, hi, schedule = bucket
    return Task(kernel, target, size, lo, hi, schedule)
