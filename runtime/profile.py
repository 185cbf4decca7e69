"""What `Executable.profile` measured: each launch beside the least time it could take."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class StepProfile:
    """One launch: seconds measured, bytes that must move, operations that must be made."""

    name: str
    kernel: str
    template: str
    loc: str | None
    seconds: float
    bytes: int
    operations: int

    def floor(self, bandwidth: float, rate: float) -> float:
        """Seconds that a device of this bandwidth (bytes/s) and rate (operations/s) needs."""
        return max(self.bytes / bandwidth, self.operations / rate)


@dataclass(frozen=True)
class Profile:
    """All launches of one run, in order."""

    steps: tuple[StepProfile, ...]

    @property
    def seconds(self) -> float:
        """The launches' times added up."""
        return sum(step.seconds for step in self.steps)

    def floor(self, bandwidth: float, rate: float) -> float:
        """The launches' floors added up, in seconds."""
        return sum(step.floor(bandwidth, rate) for step in self.steps)

    def by_kernel(self) -> list[tuple[str, int, float]]:
        """(kernel, launches, seconds), the slowest first."""
        return _totals((step.kernel, step.seconds) for step in self.steps)

    def by_template(self) -> list[tuple[str, int, float]]:
        """(template, launches, seconds), the slowest first."""
        return _totals((step.template, step.seconds) for step in self.steps)

    def table(self, bandwidth: float, rate: float) -> str:
        """Text: a line a kernel, with its share of the time and of its floor."""
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


def _totals(items: Iterable[tuple[str, float]]) -> list[tuple[str, int, float]]:
    totals: dict[str, tuple[int, float]] = {}
    for name, seconds in items:
        count, total = totals.get(name, (0, 0.0))
        totals[name] = (count + 1, total + seconds)
    rows = [(name, count, total) for name, (count, total) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])
