"""A kernel under one schedule, compiled: what a process of its own makes of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..codegen.backend import GroupLaunches
from ..codegen.build import backend_for
from ..codegen.loops import LoopKernel
from ..codegen.templates.template import Bucket, Schedule
from ..ir.dim import Dim
from ..ir.program import Kernel
from ..ir.target import Target


@dataclass(frozen=True)
class CompiledCandidate:
    """The launches of a kernel under a schedule, for any size, and their code."""

    launches: GroupLaunches
    kernels: Mapping[str, Kernel]
    blobs: Mapping[str, bytes]


@dataclass(frozen=True)
class Only:
    """Knows one schedule, for all sizes."""

    schedule: Schedule

    def buckets(
        self, kernel: LoopKernel, target: Target, size: Dim, default: list[Bucket]
    ) -> list[Bucket]:
        """One that covers all."""
        return [(0, None, self.schedule)]


class Compiler:
    """Compiles candidates; meant for processes of its own."""

    def build(self, kernel: LoopKernel, target: Target, schedule: Schedule) -> CompiledCandidate:
        """BuildError where the schedule does not fit the kernel or the target."""
        backend = backend_for(target, schedules=Only(schedule))
        launches = backend.launches(kernel, "0" * 12)
        return CompiledCandidate(launches, *backend.finish())
