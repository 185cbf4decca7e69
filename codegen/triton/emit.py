"""From a loop kernel and a schedule to launches, each written by the printer of its part."""

from ...ir.errors import BuildError
from ...ir.target import Target
from ...ir.types import TensorType
from ..backend import printer_of
from ..loops import LoopKernel, Part
from ..templates.template import Schedule
from .body import Context, Emitted
from .printers import PRINTERS, Pieces, Printer

__all__ = ["Emitted", "emit_kernel", "workspace_types"]


def emit_kernel(
    kernel: LoopKernel, name: str, schedule: Schedule, target: Target, *, interpret: bool = False
) -> tuple[Emitted, ...]:
    """The launches, in order, that do the kernel's work under `schedule`.

    A launch's `buffers` name parameters by number and workspaces by name; `workspace_types` says
    how large those are. The launches of different schedules of one kernel share workspaces by name.
    """
    pdl = target.has_dependent_launch and not interpret
    launches = []
    for piece, chosen in zip(*_pieces(kernel, schedule)):
        part = piece.kernel.parts[0]
        printer = _printer(part)
        label = name + piece.suffix
        if not isinstance(chosen, printer.schedules):
            raise BuildError(
                f"a {type(part).__name__} kernel cannot be built under a {type(chosen).__name__}",
                where=label,
                fix="take a schedule that `choices` gives for this kernel",
            )
        starts_early = pdl and printer.overlaps(part, chosen)
        context = Context(label, target, starts_early, interpret, piece.workspaces)
        launches.append(printer.emit(piece.kernel, chosen, context))
    return tuple(launches)


def workspace_types(kernel: LoopKernel, schedule: Schedule) -> dict[str, TensorType]:
    """Buffers that live between the launches of one schedule, by name."""
    types = {}
    for piece in _pieces(kernel, schedule)[0]:
        for name, param in zip(piece.workspaces, piece.kernel.params[len(kernel.params) :]):
            types[name] = param.type
    return types


def _pieces(kernel: LoopKernel, schedule: Schedule) -> Pieces:
    return _printer(kernel.parts[0]).pieces(kernel, schedule)


def _printer(part: Part) -> Printer:
    return printer_of(PRINTERS, part, "Triton")
