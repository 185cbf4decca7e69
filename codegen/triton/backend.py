"""The Triton back end as `build` sees it: collects launches, compiles each distinct one once."""

from dataclasses import dataclass
from hashlib import sha256

from ...ir import abi
from ...ir.dim import minimum
from ...ir.program import Kernel
from ...ir.progress import Progress, unwatched
from ...ir.target import Target
from ...ir.types import TensorType
from ..backend import (
    UNTUNED,
    GroupLaunch,
    GroupLaunches,
    Schedules,
    Variant,
    printer_of,
)
from ..loops import LoopKernel
from ..templates import choices
from .binary import require_triton
from .emit import PRINTERS, emit_kernel, workspace_types
from .launch import Emitted
from .pool import compile_all

# Where a launch stands in its group: before the main one (""), or after it.
_ORDER = ("_x", "_rows", *(f"_m{number}" for number in range(32)), "", "_sum", "_join")
_MAIN = ("_k", "_split")  # suffixes of launches that are the main one under another name


@dataclass(frozen=True)
class _Collected:
    emitted: Emitted
    key: str
    template: str


_PLACEHOLDER = "kernel"


class TritonBackend:
    """Kernels of one program for one GPU target."""

    def __init__(
        self,
        target: Target,
        progress: Progress = unwatched,
        schedules: Schedules = UNTUNED,
    ):
        require_triton()
        self.target, self.progress, self.schedules = target, progress, schedules
        self._planned: dict[str, GroupLaunches] = {}
        self._collected: dict[str, _Collected] = {}

    def launches(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        """Emit under each schedule of the kernel's table; equal keys are emitted once."""
        if key not in self._planned:
            self._planned[key] = self._plan(kernel, key)
        return self._planned[key]

    def _plan(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        select, default = choices(kernel, self.target)
        buckets = self.schedules.buckets(kernel, self.target, select, default)
        workspaces: dict[str, TensorType] = {}
        variants: dict[str, list[Variant]] = {}
        for number, (lo, hi, schedule) in enumerate(buckets):
            # buckets never run together, so they share a workspace where the type agrees
            labels = {}
            for label, type in workspace_types(kernel, schedule).items():
                type = _capped(kernel, type, hi) if label != "x" else type
                agrees = workspaces.get(label, type) == type
                labels[label] = label if agrees else f"{label}_{number}"
                workspaces[labels[label]] = type
            for emitted in emit_kernel(kernel, _PLACEHOLDER, schedule, self.target):
                place = emitted.name.removeprefix(_PLACEHOLDER)
                place = "" if place in _MAIN else place
                emitted = self._collect(emitted, kernel.template, key)
                params = tuple(p if isinstance(p, int) else labels[p] for p in emitted.buffers)
                variants.setdefault(place, []).append(
                    Variant(emitted.name, params, emitted.dims, emitted.grid, lo, hi, str(schedule))
                )
        assert variants.keys() <= set(_ORDER), f"launches without a place: {variants.keys()}"
        launches = [
            GroupLaunch(tuple(self._covered(variants[place], buckets)), select, place)
            for place in _ORDER
            if place in variants
        ]
        return GroupLaunches(tuple(launches), workspaces)

    def _collect(self, emitted: Emitted, template: str, key: str) -> Emitted:
        """The launch under a name that its content decides: equal ones are compiled once."""
        content = repr(emitted.named(_PLACEHOLDER).code)
        name = f"{template}_{sha256(content.encode()).hexdigest()[:12]}"
        named = emitted.named(name)
        self._collected.setdefault(name, _Collected(named, key, template))
        return named

    def _covered(self, variants: list[Variant], buckets) -> list[Variant]:
        """The variants, and an empty grid (no launch) for buckets that do without."""
        present = {v.lo: v for v in variants}
        any_ = variants[0]
        return [
            present.get(lo) or Variant(any_.kernel, any_.params, any_.dims, (0, 1, 1), lo, hi)
            for lo, hi, _ in buckets
        ]

    def finish(self) -> tuple[dict[str, Kernel], dict[str, bytes]]:
        """Compile what was collected."""
        kernels: dict[str, Kernel] = {}
        blobs: dict[str, bytes] = {}
        items = list(self._collected.values())
        self.progress("compile", 0, len(items))
        compiled = compile_all(
            [i.emitted for i in items],
            self.target,
            lambda done: self.progress("compile", done, len(items)),
        )
        suffix = self.target.binary
        for item, result in zip(items, compiled):
            name = item.emitted.name
            dims = item.emitted.signature[len(item.emitted.buffers) :]
            blobs[f"{name}.{suffix}"] = result.binary
            kernels[name] = Kernel(
                name=result.entry,
                language="triton",
                key=item.key,
                source=item.emitted.source,
                binary=f"{name}.{suffix}",
                template=item.template,
                num_warps=result.num_warps,
                shared_bytes=result.shared_bytes,
                scratch_bytes=result.scratch_bytes,
                options={
                    abi.PDL: item.emitted.pdl,
                    abi.DIMS: [kind for _, kind in dims],
                    abi.HIDDEN: result.hidden,
                },
            )
        return kernels, blobs


def _capped(kernel: LoopKernel, type: TensorType, hi: int | None) -> TensorType:
    """A workspace of partial results, no larger than the rows of its bucket need."""
    if hi is None:
        return type
    (part, *_) = kernel.parts
    rows = printer_of(PRINTERS, part, "Triton").rows(part)
    return type.with_shape(
        minimum(d, hi) if d in rows and not isinstance(d, int) else d for d in type.shape
    )
