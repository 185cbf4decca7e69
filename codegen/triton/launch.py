"""A launch: what compiling and starting a kernel needs, and the class that writes one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir.dim import Dim, symbol
from ...ir.target import Target
from ...ir.types import f8e4m3, f8e5m2
from ..loops import Axis, LoopKernel, Part
from .body import Body
from .elements import AxisVar, Env, Val, symbol_type
from .float8 import FLOAT8, NATIVE
from .names import pointer_type
from .scalars import CHECKS, prelude


@dataclass(frozen=True)
class Emitted:
    """One launch: Triton source and all that compiling and launching it needs.

    `buffers` are parameters of the loop kernel by number, or workspaces by name, in the order of
    the kernel's arguments; `dims` follow them.
    """

    name: str
    source: str
    buffers: tuple[int | str, ...]
    dims: tuple[Dim, ...]
    signature: tuple[tuple[str, str], ...]  # argument -> type, as Triton spells it
    aligned: tuple[str, ...]  # arguments that are multiples of 16
    grid: tuple[Dim, Dim, Dim]
    num_warps: int
    num_stages: int
    pdl: bool
    fp_fusion: bool  # whether a * b + c may become one rounding

    @property
    def code(self) -> "Emitted":
        """What decides the binary, without what is the launch's own."""
        return replace(self, buffers=(), dims=(), grid=(1, 1, 1))

    def named(self, name: str) -> "Emitted":
        """The launch under another name."""
        source = self.source.replace(f"def {self.name}(", f"def {name}(")
        return replace(self, name=name, source=source)


@dataclass(frozen=True)
class Context:
    """What emitting needs besides the kernel."""

    name: str
    target: Target
    pdl: bool = False  # programmatic dependent launch
    interpret: bool = False  # for Triton's interpreter, whose bf16 dot is wrong
    workspaces: tuple[str, ...] = ()  # names of the parameters past the kernel's own


class Emitter:
    """Writes a launch of one part under a schedule. `emit` writes the body and returns the grid."""

    waits = True  # for the kernels before it at once; else `emit` says when
    fuses = (
        False  # sums of products want it; a difference that the module computes means what it says
    )
    helpers = ""  # functions that the kernel's module needs

    def __init__(self, kernel: LoopKernel, schedule: Any, context: Context):
        self.kernel, self.schedule, self.context = kernel, schedule, context
        self.part: Any = kernel.parts[0]
        self.extents: Sequence[Axis] = ()  # the part's axes
        self.dims: tuple[Dim, ...] = tuple(map(symbol, kernel.symbols))
        self.body = Body(pdl=context.pdl)
        self.scalars = Env(self.body, kernel)
        self.facts = self.scalars.facts

    @staticmethod
    def overlaps(part: Part, schedule: Any) -> bool:
        """Whether the launch is worth starting beside those in front of it and behind it."""
        return True

    def emit(self) -> tuple[Dim, ...]:
        """Write the body; -> the grid."""
        raise NotImplementedError

    def lines(self, text: str) -> None:
        """The lines of a text, those that are empty apart."""
        for line in text.splitlines():
            if line.strip():
                self.body.line(line)

    def env(
        self,
        axes: Mapping[str, AxisVar],
        shape: Sequence[int],
        refs: dict[str, Val] | None = None,
        eviction: Mapping[int, str] | None = None,
    ) -> Env:
        """Elements at a place of the part's iteration space."""
        return Env(self.body, self.kernel, self.extents, axes, shape, refs, eviction)

    def launch(self) -> Emitted:
        """The launch, over all parameters and symbols of the kernel."""
        kernel, context = self.kernel, self.context
        if self.waits:
            self.body.start_dependents()
            self.body.wait()
        grid = self.emit()
        own = len(kernel.params) - len(context.workspaces)
        signature = [(f"p{i}", pointer_type(p.type.dtype)) for i, p in enumerate(kernel.params)]
        aligned = [name for name, _ in signature]
        for number, name in enumerate(kernel.symbols):
            argument = (
                f"s{number}"  # by place, so that kernels alike but for a symbol's name are one
            )
            signature.append((argument, symbol_type(kernel, name)))
            known = kernel.ranges.get(name)
            if known is not None and known.multiple % 16 == 0:
                aligned.append(argument)
        arguments = ", ".join(name for name, _ in signature)
        lines = [f"@triton.jit\ndef {context.name}({arguments}):", *self.body.root.lines(1)]
        uses_float8 = any(f"_{t}(" in line for t in (f8e4m3, f8e5m2) for line in lines)
        is_native = f8e4m3 in context.target.dtypes and not context.interpret
        return Emitted(
            context.name,
            prelude(context.interpret)
            + ("" if kernel.records is None else CHECKS)
            + (FLOAT8 + NATIVE * is_native if uses_float8 else "")
            + self.helpers
            + "\n".join(lines)
            + "\n",
            (*range(own), *context.workspaces),
            self.dims,
            tuple(signature),
            tuple(aligned),
            (*grid, *(1,) * (3 - len(grid))),  # type: ignore[arg-type]
            self.schedule.num_warps,
            getattr(self.schedule, "num_stages", 3),
            context.pdl,
            self.fuses,
        )
