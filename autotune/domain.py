"""Which schedules a task has to choose from, and in which order they are tried."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any

from ..codegen.cpp import emit as cpp
from ..codegen.templates import choices
from ..codegen.templates.template import Schedule
from ..ir.target import Target
from . import model
from .bucket_sizes import bucket_sizes
from .kernel_facts import KernelFacts
from .task import Task
from .work import is_known, works

EVERY = 4096  # schedules that are looked at one by one
VISITED = 500  # of more of them, by the model, from the default ones on
COARSE = 10  # values of a field from which on powers of two will do


def space(schedule: Schedule, target: Target) -> dict[str, tuple[Any, ...]]:
    """Which values a field may have; one of which nothing is known keeps its own.

    Both truths of what is true or false are allowed.
    """
    values: dict[str, tuple[Any, ...]] = {}
    for field in fields(schedule):  # type: ignore[arg-type]
        own = getattr(schedule, field.name)
        allowed = tuple(schedule.domain.get(field.name, ()))
        if len(allowed) > COARSE:
            allowed = tuple(v for v in allowed if v & (v - 1) == 0 or v == own)
        if field.name == "programs":  # the target's cores decide which are worth it
            cores = [target.num_cores << doubled for doubled in range(4)]
            some = (1, *cores) if schedule.domain.get(field.name) else (0, cores[0])
            allowed = tuple(dict.fromkeys((*some, own)))
        elif not allowed:
            allowed = (False, True) if isinstance(own, bool) else (own,)
        values[field.name] = allowed
    return values


class Candidates:
    """The schedules of a task: `ordered` has the default one first, then what the model ranks."""

    def __init__(self, task: Task):
        self.task = task
        self.sizes = bucket_sizes(task.kernel, task.size, task.lo, task.hi)
        self.facts = [KernelFacts(task.kernel, sizes, task.target) for sizes in self.sizes]
        self._base = [model.seconds(facts, task.default) or 1.0 for facts in self.facts]

    def cost(self, schedule: Schedule) -> float | None:
        """By the model, over the default's, the mean over sizes; None where it is none for it."""
        taken = [model.seconds(facts, schedule) for facts in self.facts]
        ratios = [t / base for t, base in zip(taken, self._base) if t is not None]
        return sum(ratios) / len(ratios) if len(ratios) == len(taken) else None

    def ordered(self, most: int) -> list[Schedule]:
        """At most so many, no two of which do the same by the model."""
        ranked: list[tuple[float, int, str, Schedule]] = []
        for start in self._starts():
            values = self.space(start)
            every = prod(map(len, values.values())) <= EVERY
            found = _product(start, values) if every else self._search(start, values)
            for schedule in found:
                cost = self.cost(schedule)
                if cost is not None:
                    ranked.append((cost, _distance(schedule, start), str(schedule), schedule))
        seen = {self._does(self.task.default)}
        chosen = [self.task.default]
        for *_, schedule in sorted(ranked, key=lambda item: item[:3]):
            does = self._does(schedule)
            if does not in seen and len(chosen) < most:
                seen.add(does)
                chosen.append(schedule)
        return chosen

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """Those that differ in one field by one step, the most promising first."""
        found = [(self.cost(s), str(s), s) for s in _steps(schedule, self.space(schedule))]
        good = [(cost, text, s) for cost, text, s in found if cost is not None]
        return [s for _, _, s in sorted(good, key=lambda item: item[:2])]

    def space(self, schedule: Schedule) -> dict[str, tuple[Any, ...]]:
        """See `space`."""
        return space(schedule, self.task.target)

    def _starts(self) -> Iterable[Schedule]:
        """One of each class that the kernel has by default for some size, the task's first."""
        kernel, target = self.task.kernel, self.task.target
        _, buckets = choices(kernel, target) if target.is_gpu else cpp.choices(kernel)
        found = {type(self.task.default): self.task.default}
        for *_, schedule in buckets:
            found.setdefault(type(schedule), schedule)
        return found.values()

    def _does(self, schedule: Schedule) -> object:
        """Equal for schedules of which the model sees no difference."""
        if not is_known(schedule):
            return schedule
        return type(schedule), str([works(facts, schedule) for facts in self.facts])

    def _search(self, start: Schedule, values: Mapping[str, tuple]) -> list[Schedule]:
        """Best first by the model, from one on, a step of a field at a time."""
        first = self.cost(start)
        heap = [(0.0 if first is None else first, str(start), start)]
        known, visited = {start}, list[Schedule]()
        while heap and len(visited) < VISITED:
            _, _, schedule = heapq.heappop(heap)
            visited.append(schedule)
            for other in _steps(schedule, values):
                if other in known:
                    continue
                known.add(other)
                cost = self.cost(other)
                if cost is not None:
                    heapq.heappush(heap, (cost, str(other), other))
        return visited


def _distance(a: Schedule, b: Schedule) -> int:
    """In how many fields they differ: of those that do the same the most usual one is tried."""
    return sum(getattr(a, f.name) != getattr(b, f.name) for f in fields(a))  # type: ignore[arg-type]


def _product(start: Schedule, values: Mapping[str, tuple]) -> Iterator[Schedule]:
    for chosen in itertools.product(*values.values()):
        yield replace(start, **dict(zip(values, chosen)))  # type: ignore[type-var]


def _steps(schedule: Schedule, values: Mapping[str, tuple]) -> Iterator[Schedule]:
    for name, allowed in values.items():
        at = allowed.index(getattr(schedule, name))
        for other in allowed[max(at - 1, 0) : at] + allowed[at + 1 : at + 2]:
            yield replace(schedule, **{name: other})  # type: ignore[type-var]
