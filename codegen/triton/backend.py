"""The Triton back end as `build` sees it: collects launches, compiles each distinct one once."""

from dataclasses import dataclass

from ...ir.dim import minimum
from ...ir.program import Kernel
from ...ir.target import Target
from ...ir.types import TensorType
from ..backend import Launch, Launches, Progress, Variant
from ..loops import Contract, LoopKernel, PagedAttention
from .body import Emitted
from .choose import choices
from .compile import compile_kernel, require_triton
from .emit import emit_kernel, workspace_types

# Where a launch stands in its group: before the main one (""), or after it.
_ORDER = ("_x", "", "_sum", "_join")
_MAIN = ("_k", "_split")  # suffixes of launches that are the main one under another name


@dataclass(frozen=True)
class _Collected:
    emitted: Emitted
    key: str
    template: str


class TritonBackend:
    """Kernels of one program for one GPU target."""

    def __init__(self, target: Target, progress: Progress | None = None):
        require_triton()
        self.target = target
        self.progress = progress
        self._planned: dict[str, Launches] = {}
        self._collected: dict[str, _Collected] = {}

    def launches(self, kernel: LoopKernel, key: str) -> Launches:
        """Emit under each schedule of the default table; equal keys are emitted once."""
        if key not in self._planned:
            self._planned[key] = self._plan(kernel, key)
        return self._planned[key]

    def _plan(self, kernel: LoopKernel, key: str) -> Launches:
        select, buckets = choices(kernel, self.target)
        workspaces: dict[str, TensorType] = {}
        variants: dict[str, list[Variant]] = {}
        for number, (lo, hi, schedule) in enumerate(buckets):
            name = f"{kernel.template}_{key[:12]}" + (f"_{number}" if len(buckets) > 1 else "")
            # buckets never run together, so they share a workspace where the type agrees
            labels = {}
            for label, type in workspace_types(kernel, schedule).items():
                type = _capped(kernel, type, hi) if label != "x" else type
                agrees = workspaces.get(label, type) == type
                labels[label] = label if agrees else f"{label}_{number}"
                workspaces[labels[label]] = type
            for emitted in emit_kernel(kernel, name, schedule, self.target):
                self._collected[emitted.name] = _Collected(emitted, key, kernel.template)
                place = emitted.name.removeprefix(name)
                place = "" if place in _MAIN else place
                params = tuple(p if isinstance(p, int) else labels[p] for p in emitted.buffers)
                variants.setdefault(place, []).append(
                    Variant(emitted.name, params, emitted.dims, emitted.grid, lo, hi)
                )
        launches = [
            Launch(tuple(self._covered(variants[place], buckets)), select, place)
            for place in _ORDER
            if place in variants
        ]
        return Launches(tuple(launches), workspaces)

    def _covered(self, variants: list[Variant], buckets) -> list[Variant]:
        """The variants, and an empty grid (no launch) for buckets that do without."""
        present = {v.lo: v for v in variants}
        any_ = variants[0]
        return [
            present.get(lo)
            or Variant(any_.kernel, any_.params, any_.dims, (0, 1, 1), lo, hi)
            for lo, hi, _ in buckets
        ]

    def finish(self) -> tuple[dict[str, Kernel], dict[str, bytes]]:
        """Compile what was collected."""
        kernels: dict[str, Kernel] = {}
        blobs: dict[str, bytes] = {}
        for done, (name, item) in enumerate(self._collected.items()):
            if self.progress is not None:
                self.progress(f"compiling {name}", done, len(self._collected))
            compiled = compile_kernel(item.emitted, self.target)
            suffix = "cubin" if self.target.kind == "cuda" else "hsaco"
            binary = f"{name}.{suffix}"
            blobs[binary] = compiled.binary
            kernels[name] = Kernel(
                name=compiled.entry,
                language="triton",
                key=item.key,
                source=item.emitted.source,
                binary=binary,
                template=item.template,
                num_warps=compiled.num_warps,
                shared_bytes=compiled.shared_bytes,
                scratch_bytes=compiled.scratch_bytes,
                options=compiled.options,
            )
        if self.progress is not None:
            self.progress("compiled", len(self._collected), len(self._collected))
        return kernels, blobs


def _capped(kernel: LoopKernel, type: TensorType, hi: int | None) -> TensorType:
    """A workspace of partial results, no larger than the rows of its bucket need."""
    part = kernel.parts[0]
    assert isinstance(part, (PagedAttention, Contract))
    rows = part.tokens if isinstance(part, PagedAttention) else part.m.extent
    if hi is None or isinstance(rows, int):
        return type
    return type.with_shape(minimum(d, hi) if d == rows else d for d in type.shape)
