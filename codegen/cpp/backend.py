"""C++ kernels of one program, compiled together into one shared library."""

from collections.abc import Mapping
from dataclasses import replace

from ...ir.dim import symbol
from ...ir.program import Kernel
from ...ir.progress import Progress, unwatched
from ...ir.target import Target
from ..backend import UNTUNED, GroupLaunch, GroupLaunches, Schedules, Variant
from ..loops import LoopKernel
from ..templates.template import Schedule, merged
from .binary import compile_library
from .emit import choices, emit_kernel
from .schedules import FixedSchedule

LIBRARY = "kernels.so"


class CppBackend:
    """Collects sources by key; each group is one launch."""

    def __init__(
        self,
        target: Target,
        progress: Progress = unwatched,
        schedules: Schedules = UNTUNED,
    ):
        self.target, self.progress, self.schedules = target, progress, schedules
        self.kernels: dict[tuple[str, Schedule], Kernel] = {}  # by key
        self._planned: dict[str, GroupLaunches] = {}

    def launches(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        """One launch with every parameter and the symbols the kernel reads.

        A kernel takes any sizes: there is one for each schedule that is another.
        """
        if key not in self._planned:
            self._planned[key] = self._plan(kernel, key)
        return self._planned[key]

    def _plan(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        size, default = choices(kernel)
        buckets = merged(self.schedules.buckets(kernel, self.target, size, default))
        params = tuple(range(len(kernel.params)))
        dims = tuple(symbol(name) for name in kernel.symbols)
        variants = []
        for lo, hi, schedule in buckets:
            made = self._kernel(kernel, key, schedule)
            text = "" if isinstance(schedule, FixedSchedule) else str(schedule)
            variants.append(Variant(made.name, params, dims, (), lo, hi, text))
        if len(variants) == 1:
            size, variants = 0, [replace(variants[0], lo=0, hi=None)]
        return GroupLaunches((GroupLaunch(tuple(variants), size),), {})

    def _kernel(self, kernel: LoopKernel, key: str, schedule: Schedule) -> Kernel:
        if (key, schedule) not in self.kernels:
            number = sum(other == key for other, _ in self.kernels)
            name = f"{kernel.template}_{key[:12]}" + (f"_{number}" if number else "")
            source = emit_kernel(kernel, name, self.target, schedule)
            made = Kernel(name, "cpp", key, source, LIBRARY, kernel.template)
            self.kernels[key, schedule] = made
        return self.kernels[key, schedule]

    def finish(self) -> tuple[Mapping[str, Kernel], Mapping[str, bytes]]:
        """Compile the library."""
        kernels = {k.name: k for k in self.kernels.values()}
        sources = [(k.name, k.source) for k in kernels.values()]
        return kernels, {LIBRARY: compile_library(sources, self.target, self.progress)}
