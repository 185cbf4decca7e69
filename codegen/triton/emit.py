"""From a loop kernel and a schedule to launches, each written by the printer of its part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.dim import Dim, product
from ...ir.errors import BuildError
from ...ir.target import Target
from ...ir.types import TensorType
from ..backend import printer_of
from ..loops import Contract, LoopKernel, Part, Pointwise, Reduce, Sample
from ..templates.attention import Attention
from ..templates.attention_schedules import AttentionSchedule
from ..templates.contract_schedules import DotSchedule, GemvSchedule
from ..templates.pointwise import PointwiseSchedule
from ..templates.reduce import ReduceSchedule
from ..templates.sample import SampleJoin, SampleSplit
from ..templates.scan import Scan, ScanSchedule
from ..templates.scatter import Scatter, ScatterSchedule
from ..templates.sort import Sort
from ..templates.template import Schedule
from .attention import AttentionEmitter
from .attention_join import attention_pieces
from .dot import DotEmitter
from .gemv import GemvEmitter
from .group_rows import GroupRowsEmitter
from .launch import Context, Emitted, Emitter
from .pointwise import PointwiseEmitter
from .reduce import ReduceEmitter, reduce_pieces
from .sample import JoinEmitter, SplitEmitter, sample_pieces
from .scan import ScanEmitter, scan_pieces
from .scatter import ScatterEmitter, scatter_pieces
from .sort import MergeEmitter, SortMerge, SortTile, TileEmitter, sort_pieces
from .split_kernels import GroupRows, GroupRowsSchedule, Piece, contract_pieces

__all__ = ["Emitted", "emit_kernel", "workspace_types"]


@dataclass(frozen=True)
class Printer:
    """Writes a class of part: `emitters` has what writes a launch under each class of schedule.

    `pieces(kernel, schedule)`: the launches, in order, of a schedule of the part's template, each
    written by the printer of its own part. `rows(part)`: extents of workspaces that the size of the
    template's buckets bounds.
    """

    emitters: Mapping[type[Schedule], type[Emitter]]
    pieces: Callable[[LoopKernel, Any], Sequence[Piece]] = lambda kernel, schedule: [
        Piece(kernel, schedule)
    ]
    rows: Callable[[Any], Sequence[Dim]] = lambda part: ()


PRINTERS: dict[type[Part], Printer] = {
    Pointwise: Printer({PointwiseSchedule: PointwiseEmitter}),
    Reduce: Printer(
        {ReduceSchedule: ReduceEmitter}, reduce_pieces, lambda part: [a.extent for a in part.rows]
    ),
    Scan: Printer(
        {ScanSchedule: ScanEmitter},
        scan_pieces,
        lambda part: [product(a.extent for a in part.rows)],
    ),
    Scatter: Printer({ScatterSchedule: ScatterEmitter}, scatter_pieces),
    Sort: Printer({SortTile: TileEmitter, SortMerge: MergeEmitter}, sort_pieces),
    Contract: Printer(
        {GemvSchedule: GemvEmitter, DotSchedule: DotEmitter},
        contract_pieces,
        lambda part: [part.m.extent],
    ),
    GroupRows: Printer({GroupRowsSchedule: GroupRowsEmitter}),
    Attention: Printer({AttentionSchedule: AttentionEmitter}, attention_pieces),
    Sample: Printer({SampleSplit: SplitEmitter, SampleJoin: JoinEmitter}, sample_pieces),
}


def emit_kernel(
    kernel: LoopKernel, name: str, schedule: Schedule, target: Target, *, interpret: bool = False
) -> tuple[Emitted, ...]:
    """The launches, in order, that do the kernel's work under `schedule`.

    A launch's `buffers` name parameters by number and workspaces by name; `workspace_types` says
    how large those are. The launches of different schedules of one kernel share workspaces by name.
    """
    pdl = target.has_dependent_launch and not interpret
    launches = []
    for piece in pieces_of(kernel, schedule):
        part = piece.kernel.parts[0]
        label = name + piece.suffix
        emitter = printer_of(PRINTERS, part, "Triton").emitters.get(type(piece.schedule))
        if emitter is None:
            kinds = type(part).__name__, type(piece.schedule).__name__
            raise BuildError(
                "a {} kernel cannot be built under a {}".format(*kinds),
                where=label,
                fix="take a schedule that `choices` gives for this kernel",
            )
        starts_early = pdl and emitter.overlaps(part, piece.schedule)
        context = Context(label, target, starts_early, interpret, piece.workspaces)
        launches.append(emitter(piece.kernel, piece.schedule, context).launch())
    return tuple(launches)


def workspace_types(kernel: LoopKernel, schedule: Schedule) -> dict[str, TensorType]:
    """Buffers that live between the launches of one schedule, by name."""
    return {
        name: param.type
        for piece in pieces_of(kernel, schedule)
        for name, param in zip(piece.workspaces, piece.kernel.params[len(kernel.params) :])
    }


def pieces_of(kernel: LoopKernel, schedule: Schedule) -> Sequence[Piece]:
    """The launches, before they are written."""
    return printer_of(PRINTERS, kernel.parts[0], "Triton").pieces(kernel, schedule)
