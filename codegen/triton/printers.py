"""Which functions write which part of a kernel in Triton: one printer a class of part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.dim import Dim, product
from ..loops import Contract, LoopKernel, Part, Pointwise, Reduce, Sample
from ..templates.attention import Attention, AttentionSchedule
from ..templates.contract_schedules import DotSchedule, GemvSchedule
from ..templates.pointwise import PointwiseSchedule
from ..templates.reduce import ReduceSchedule
from ..templates.scan import Scan, ScanSchedule
from ..templates.scatter import Scatter, ScatterSchedule
from ..templates.sort import Sort
from ..templates.template import Schedule
from .attention import emit_attention
from .attention_join import attention_pieces
from .body import Context, Emitted
from .contract import contract_pieces, emit_contract, overlaps
from .pointwise import emit_pointwise
from .reduce import emit_reduce, reduce_pieces
from .sample import SampleJoin, SampleSplit, emit_sample, sample_pieces
from .scan import emit_scan, scan_pieces
from .scatter import emit_scatter, scatter_pieces
from .sort import SortMerge, SortTile, emit_sort, sort_pieces
from .split_kernels import Piece

Pieces = tuple[Sequence[Piece], Sequence[Schedule]]  # the launches of a kernel, in order


def one_launch(kernel: LoopKernel, schedule: Schedule) -> Pieces:
    """The kernel as it is."""
    return [Piece(kernel)], [schedule]


@dataclass(frozen=True)
class Printer:
    """`emit(kernel, schedule, context)`: one launch, under one of the classes `schedules`.

    `pieces(kernel, schedule)`: the launches of a schedule of the part's template, each emitted by
    the printer of its own part. `rows(part)`: extents of workspaces that the size of the template's
    buckets bounds. `overlaps(part, schedule)`: whether the launch is worth starting beside those in
    front of it and behind it.
    """

    schedules: tuple[type[Schedule], ...]
    emit: Callable[[LoopKernel, Any, Context], Emitted]
    pieces: Callable[[LoopKernel, Any], Pieces] = one_launch
    rows: Callable[[Any], Sequence[Dim]] = lambda part: ()
    overlaps: Callable[[Any, Any], bool] = lambda part, schedule: True


PRINTERS: dict[type[Part], Printer] = {
    Pointwise: Printer((PointwiseSchedule,), emit_pointwise),
    Reduce: Printer(
        (ReduceSchedule,),
        emit_reduce,
        reduce_pieces,
        lambda part: [a.extent for a in part.rows],
    ),
    Scan: Printer(
        (ScanSchedule,),
        emit_scan,
        scan_pieces,
        lambda part: [product(a.extent for a in part.rows)],
    ),
    Scatter: Printer((ScatterSchedule,), emit_scatter, scatter_pieces),
    Sort: Printer((SortTile, SortMerge), emit_sort, sort_pieces),
    Contract: Printer(
        (GemvSchedule, DotSchedule),
        emit_contract,
        contract_pieces,
        lambda part: [part.m.extent],
        overlaps,
    ),
    Attention: Printer(
        (AttentionSchedule,),
        emit_attention,
        attention_pieces,
        lambda part: [] if part.batch else [part.tokens],  # buckets are of a sequence's queries
    ),
    Sample: Printer((SampleSplit, SampleJoin), emit_sample, sample_pieces),
}
