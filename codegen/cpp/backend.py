"""C++ kernels of one program, compiled together into one shared library."""

from collections.abc import Mapping

from ...ir.dim import symbol
from ...ir.program import Kernel
from ...ir.target import Target
from ..backend import Launch, Launches, Progress, Variant
from ..loops import LoopKernel
from .compile import compile_library
from .emit import emit_kernel

LIBRARY = "kernels.so"


class CppBackend:
    """Collects sources by key; a kernel takes any sizes, so each group is one launch."""

    def __init__(self, target: Target, progress: Progress | None = None):
        self.target, self.progress = target, progress
        self.kernels: dict[str, Kernel] = {}  # by key

    def launches(self, kernel: LoopKernel, key: str) -> Launches:
        """One launch with every parameter and the symbols the kernel reads."""
        if key not in self.kernels:
            name = f"{kernel.template}_{key[:12]}"
            source = emit_kernel(kernel, name, self.target)
            self.kernels[key] = Kernel(name, "cpp", key, source, LIBRARY, kernel.template)
        params = tuple(range(len(kernel.params)))
        dims = tuple(symbol(name) for name in kernel.symbols)
        return Launches((Launch((Variant(self.kernels[key].name, params, dims),)),), {})

    def finish(self) -> tuple[Mapping[str, Kernel], Mapping[str, bytes]]:
        """Compile the library."""
        kernels = {k.name: k for k in self.kernels.values()}
        if self.progress is not None:
            self.progress("compile", 0, len(kernels))
        library = compile_library([(k.name, k.source) for k in kernels.values()], self.target)
        if self.progress is not None:
            self.progress("compile", len(kernels), len(kernels))
        return kernels, {LIBRARY: library}
