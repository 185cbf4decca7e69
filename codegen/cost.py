"""What ways to compute something cost on a target: from this, groups and schedules are decided.

A way is the bytes it moves, the operations it makes and the kernels it needs. It takes the longer
of moving and computing at the target's rates (`Target.seconds`), and a launch for each kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.target import REFERENCE, Target
from ..ir.types import DType


@dataclass(frozen=True)
class Way:
    """What one way needs; `operands`: dtypes of the products that its operations are."""

    num_bytes: int
    operations: int = 0
    launches: int = 0
    operands: tuple[DType, ...] = ()

    def seconds(self, target: Target) -> float:
        """The least time on the target."""
        running = target.seconds(self.num_bytes, self.operations, *self.operands)
        return running + self.launches * target.launch_us * 1e-6


def compared(ways: Mapping[str, Way], target: Target) -> tuple[str, str]:
    """The way that takes the least time, the first of equals, and what all of them take."""
    took = {name: way.seconds(target) for name, way in ways.items()}
    best = min(took, key=lambda name: took[name])
    return best, ", ".join(f"{name} {seconds * 1e6:.3g} us" for name, seconds in took.items())


def scaled(programs: int, target: Target) -> int:
    """A number of programs that was searched for on REFERENCE, on a target with other cores."""
    return programs * target.num_cores // REFERENCE.num_cores
