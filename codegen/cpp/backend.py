"""C++ kernels of one program, compiled together into one shared library."""

from collections.abc import Mapping

from ...ir.dim import symbol
from ...ir.program import Kernel
from ...ir.progress import Progress, unwatched
from ...ir.target import Target
from ..backend import GroupLaunch, GroupLaunches, Variant
from ..loops import LoopKernel
from .binary import compile_library
from .emit import emit_kernel

LIBRARY = "kernels.so"


class CppBackend:
    """Collects sources by key; a kernel takes any sizes, so each group is one launch."""

    def __init__(self, target: Target, progress: Progress = unwatched):
        self.target, self.progress = target, progress
        self.kernels: dict[str, Kernel] = {}  # by key

    def launches(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        """One launch with every parameter and the symbols the kernel reads."""
        if key not in self.kernels:
            name = f"{kernel.template}_{key[:12]}"
            source = emit_kernel(kernel, name, self.target)
            self.kernels[key] = Kernel(name, "cpp", key, source, LIBRARY, kernel.template)
        params = tuple(range(len(kernel.params)))
        dims = tuple(symbol(name) for name in kernel.symbols)
        return GroupLaunches((GroupLaunch((Variant(self.kernels[key].name, params, dims),)),), {})

    def finish(self) -> tuple[Mapping[str, Kernel], Mapping[str, bytes]]:
        """Compile the library."""
        kernels = {k.name: k for k in self.kernels.values()}
        sources = [(k.name, k.source) for k in kernels.values()]
        return kernels, {LIBRARY: compile_library(sources, self.target, self.progress)}
