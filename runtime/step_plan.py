"""A run of steps of any kind, which runtime/interpreter.py has compiled, and what it keeps."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from .device import Memory
from .profile import StepProfile

Run = Callable[["Frame"], None]
Late = dict[int, tuple[Memory, tuple[int, ...]]]  # buffers by their index, with their shapes


@dataclass
class Frame:
    """One run: the sizes known so far, where buffers lie, and memory allocated on the way."""

    values: dict[str, int]
    addresses: np.ndarray  # uint64, one a buffer
    late: Late = field(default_factory=dict)
    profile: list[StepProfile] | None = None  # filled where one is wanted


class StepPlan:
    """A program of any steps at the sizes known beforehand, in place of a device's LaunchPlan."""

    def __init__(self, run: Run, values: Mapping[str, int], outputs: Collection[int]):
        self._run, self._values, self._outputs = run, values, outputs
        self._late: Late = {}

    def run(self, addresses: np.ndarray) -> None:
        """Run all steps. Errors of functions that it calls pass through."""
        frame = Frame(dict(self._values), addresses.copy())
        self._run(frame)
        self._late = {at: found for at, found in frame.late.items() if at in self._outputs}

    def take_late(self) -> Late:
        """Memory and shape of the last run's outputs whose sizes steps bound, by their index."""
        late, self._late = self._late, {}
        return late

    def profile(self, addresses: np.ndarray) -> list[StepProfile]:
        """Run all steps, timing each. -> in the order in which they ran, repeated ones too."""
        frame = Frame(dict(self._values), addresses.copy(), profile=[])
        self._run(frame)
        return frame.profile or []

    def capture(self, addresses: np.ndarray) -> None:
        """There is nothing to capture: which steps run, only the run itself says."""
