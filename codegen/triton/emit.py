"""From a loop kernel and a schedule to launches: which template writes which."""

from dataclasses import replace

from ...ir.errors import BuildError
from ...ir.target import Target
from ...ir.types import TensorType, f32
from ..loops import Contract, LoopKernel, PagedAttention, Pointwise, Reduce, Sample
from .attention import attention_pieces, emit_attention
from .body import Context, Emitted
from .choose import prologue_schedule
from .dot import emit_dot
from .gemv import emit_gemv
from .pointwise import emit_pointwise
from .reduce import emit_reduce
from .rewrite import Piece, materialize, split_k, split_rows
from .sample import emit_sample, sample_pieces
from .schedule import (
    AttentionSchedule,
    DotSchedule,
    GemvSchedule,
    PointwiseSchedule,
    ReduceSchedule,
    SampleJoin,
    SampleSchedule,
    SampleSplit,
    Schedule,
)

__all__ = ["Emitted", "emit_kernel", "workspace_types"]


def emit_kernel(
    kernel: LoopKernel, name: str, schedule: Schedule, target: Target, *, interpret: bool = False
) -> tuple[Emitted, ...]:
    """The launches, in order, that do the kernel's work under `schedule`.

    A launch's `buffers` name parameters by number and workspaces by name; `workspace_types` says
    how large those are. The launches of different schedules of one kernel share workspaces by name.
    """
    pieces, schedules = _pieces(kernel, schedule)
    pdl = target.has_dependent_launch and not interpret
    return tuple(
        _emit(
            piece.kernel,
            chosen,
            Context(
                name + piece.suffix,
                pdl and overlaps(piece.kernel, chosen),
                interpret,
                piece.workspaces,
            ),
        )
        for piece, chosen in zip(pieces, schedules)
    )


def overlaps(kernel: LoopKernel, schedule: Schedule) -> bool:
    """Whether a launch is worth starting beside those in front of it and behind it.

    Contractions of float32 in tiles are not: they run on ordinary cores, which programs that wait
    for their turn take from them. On an H200, BERT in float32 took 3 times as long.
    """
    part = kernel.parts[0]
    is_wide = isinstance(part, Contract) and f32 in (part.x_dtype, part.w_dtype)
    return not (is_wide and isinstance(schedule, DotSchedule))


def workspace_types(kernel: LoopKernel, schedule: Schedule) -> dict[str, TensorType]:
    """Buffers that live between the launches of one schedule, by name."""
    pieces, _ = _pieces(kernel, schedule)
    types = {}
    for piece in pieces:
        for name, param in zip(piece.workspaces, piece.kernel.params[len(kernel.params) :]):
            types[name] = param.type
    return types


def _pieces(kernel: LoopKernel, schedule: Schedule) -> tuple[list[Piece], list[Schedule]]:
    if isinstance(schedule, AttentionSchedule):
        return attention_pieces(kernel, schedule)
    if isinstance(schedule, SampleSchedule):
        return sample_pieces(kernel, schedule)
    if isinstance(schedule, ReduceSchedule) and schedule.splits > 1:
        first, second = split_rows(kernel, schedule.splits)
        whole = replace(schedule, splits=1)
        return [first, second], [whole, prologue_schedule(second.kernel)]
    if not isinstance(schedule, DotSchedule):
        return [Piece(kernel)], [schedule]
    pieces, schedules = [Piece(kernel)], [schedule]
    if schedule.materialize:
        first, second = materialize(kernel)
        pieces, schedules = [first, second], [prologue_schedule(first.kernel), schedule]
    if schedule.split_k > 1:
        first, second = split_k(pieces.pop(), schedule.split_k)
        pieces += [first, second]
        schedules.append(PointwiseSchedule(256, 4))
    return pieces, schedules


def _emit(kernel: LoopKernel, schedule: Schedule, context: Context) -> Emitted:
    part = kernel.parts[0]
    match part, schedule:
        case Pointwise(), PointwiseSchedule():
            return emit_pointwise(kernel, schedule, context)
        case Reduce(), ReduceSchedule():
            return emit_reduce(kernel, schedule, context)
        case Contract(), GemvSchedule():
            return emit_gemv(kernel, schedule, context)
        case Contract(), DotSchedule():
            return emit_dot(kernel, schedule, context)
        case PagedAttention(), AttentionSchedule():
            return emit_attention(kernel, schedule, context)
        case Sample(), SampleSplit() | SampleJoin():
            return emit_sample(kernel, schedule, context)
    raise BuildError(
        f"a {type(part).__name__} kernel cannot be built under a {type(schedule).__name__}",
        where=context.name,
        fix="take a schedule that `choices` gives for this kernel",
    )
