"""Contractions in Triton: the launches of a schedule, and which template of source writes each."""

from ...ir.types import f32
from ..elements import index_facts
from ..loops import Contract, LoopKernel, Reduce
from ..templates.contract_schedules import DotSchedule, GemvSchedule
from ..templates.pointwise import PointwiseSchedule
from ..templates.reduce import reduce_schedule
from ..templates.template import Schedule
from .body import Context, Emitted
from .dot import emit_dot
from .gemv import emit_gemv
from .split_kernels import Piece, materialize, split_k


def contract_pieces(
    kernel: LoopKernel, schedule: GemvSchedule | DotSchedule
) -> tuple[list[Piece], list[Schedule]]:
    """One launch, or one before it that computes x, and one after it that adds pieces of k.

    Statistics that x needs are made by the launch before.
    """
    part = kernel.parts[0]
    pieces: list[Piece] = [Piece(kernel)]
    schedules: list[Schedule] = [schedule]
    is_tiled = isinstance(schedule, DotSchedule)
    if part.phases or (is_tiled and schedule.materialize):
        first, second = materialize(kernel)
        pieces, schedules = [first, second], [_prologue_schedule(first.kernel), schedule]
    if is_tiled and schedule.split_k > 1:
        first, second = split_k(pieces.pop(), schedule.split_k)
        pieces += [first, second]
        schedules.append(PointwiseSchedule(256, 4))
    return pieces, schedules


def _prologue_schedule(kernel: LoopKernel) -> Schedule:
    (part,) = kernel.parts
    if isinstance(part, Reduce):
        return reduce_schedule(part, index_facts(kernel, ()))
    return PointwiseSchedule()


def emit_contract(
    kernel: LoopKernel, schedule: GemvSchedule | DotSchedule, context: Context
) -> Emitted:
    """One launch: on ordinary cores, or in tiles of a matrix unit."""
    if isinstance(schedule, GemvSchedule):
        return emit_gemv(kernel, schedule, context)
    return emit_dot(kernel, schedule, context)


def overlaps(part: Contract, schedule: Schedule) -> bool:
    """Contractions of float32 in tiles are not worth starting beside others.

    They run on ordinary cores, which programs that wait for their turn take from them. On an H200,
    BERT in float32 took 3 times as long.
    """
    return not (f32 in (part.x_dtype, part.w_dtype) and isinstance(schedule, DotSchedule))
