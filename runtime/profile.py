"""What `Executable.profile` measured: each step beside the least time it could take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir.steps import LaunchStep
from ..ir.target import Target
from ..ir.types import DTYPES
from .device import Launch


@dataclass(frozen=True)
class StepProfile:
    """One launch or other step: seconds, bytes that must move, operations that must be made.

    kernel: what ran; template: of which kind it is; target: what it ran on; products: dtypes of the
    operands whose products its operations are (`Target.rate_of`).
    """

    name: str
    kernel: str
    template: str
    loc: str | None
    seconds: float
    bytes: int
    operations: int
    target: Target
    products: tuple[str, ...] = ()

    def floor(self, bandwidth: float | None = None, rate: float | None = None) -> float:
        """Seconds that a device of this bandwidth (bytes/s) and rate (operations/s) needs.

        Those of the target's data where none are given.
        """
        rate = rate or self.target.rate_of(*(DTYPES[name] for name in self.products))
        return max(self.bytes / (bandwidth or self.target.bandwidth), self.operations / rate)


@dataclass(frozen=True)
class Profile:
    """All launches and other steps of one run, in order."""

    steps: tuple[StepProfile, ...]

    @property
    def seconds(self) -> float:
        """The steps' times added up."""
        return sum(step.seconds for step in self.steps)

    def floor(self, bandwidth: float | None = None, rate: float | None = None) -> float:
        """The steps' floors added up, in seconds."""
        return sum(step.floor(bandwidth, rate) for step in self.steps)

    def by_kernel(self) -> list[tuple[str, int, float]]:
        """(kernel, launches, seconds), the slowest first."""
        seconds: dict[str, list[float]] = {}
        for step in self.steps:
            seconds.setdefault(step.kernel, []).append(step.seconds)
        rows = [(kernel, len(each), sum(each)) for kernel, each in seconds.items()]
        return sorted(rows, key=lambda row: -row[2])

    def table(self, bandwidth: float | None = None, rate: float | None = None) -> str:
        """Text: a line a kernel, with its share of the time and of its floor: see `floor`."""
        floors: dict[str, float] = {}
        for step in self.steps:
            floors[step.kernel] = floors.get(step.kernel, 0) + step.floor(bandwidth, rate)
        total = self.seconds or 1.0
        lines = [f"{'kernel':<40} {'runs':>5} {'ms':>9} {'time':>6} {'floor/time':>10}"]
        for kernel, count, seconds in self.by_kernel():
            share = floors[kernel] / seconds if seconds else 0.0
            lines.append(
                f"{kernel[:40]:<40} {count:>5} {seconds * 1e3:>9.3f} {seconds / total:>6.1%}"
                f" {share:>10.1%}"
            )
        floor = self.floor(bandwidth, rate) / total
        lines.append(
            f"{'all':<40} {len(self.steps):>5} {total * 1e3:>9.3f} {1:>6.0%} {floor:>10.1%}"
        )
        return "\n".join(lines)


def of_launches(
    steps: Sequence[LaunchStep],
    launches: Sequence[Launch],
    seconds: Sequence[float],
    target: Target,
) -> tuple[StepProfile, ...]:
    """What `launches` of `steps` took on `target`, one a launch."""
    return tuple(
        StepProfile(
            steps[launch.step].name,
            launch.kernel.name,
            launch.kernel.template,
            steps[launch.step].loc,
            took,
            launch.traffic,
            launch.operations,
            target,
            steps[launch.step].products,
        )
        for launch, took in zip(launches, seconds, strict=True)
    )


def of_steps(runs: Sequence[Sequence[StepProfile]]) -> tuple[StepProfile, ...]:
    """The median over `runs` of what each step took, its repetitions in one run added up."""
    totals: list[dict[tuple, StepProfile]] = []
    for run in runs:
        total: dict[tuple, StepProfile] = {}
        for step in run:
            key = (step.name, step.kernel)
            if key in total:
                costs = {c: getattr(total[key], c) + getattr(step, c) for c in _COSTS}
                step = replace(step, **costs)
            total[key] = step
        totals.append(total)
    keys = dict.fromkeys(key for total in totals for key in total)
    found = [[total[key] for total in totals if key in total] for key in keys]
    return tuple(sorted(same, key=lambda step: step.seconds)[len(same) // 2] for same in found)


_COSTS = ("seconds", "bytes", "operations")
