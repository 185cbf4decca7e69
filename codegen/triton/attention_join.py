"""The launches of attention whose keys several programs share: partial results, and their join."""

from collections.abc import Sequence

from ...ir.dim import symbol
from ...ir.types import TensorType, f32
from ..loops import (
    LARGEST,
    SUM,
    Apply,
    Axis,
    Const,
    Element,
    Load,
    LoopKernel,
    Reduce,
    Reduction,
    Ref,
    Store,
)
from ..templates.attention import Attention, AttentionSchedule
from ..templates.reduce import ReduceSchedule
from ..templates.template import power_of_2
from .split_kernels import Piece, handed_on


def attention_pieces(kernel: LoopKernel, schedule: AttentionSchedule) -> Sequence[Piece]:
    """The launches of a schedule: one, or one that leaves partial results and one that joins."""
    (part,) = kernel.parts
    assert isinstance(part, Attention)
    if schedule.splits == 1:
        return [Piece(kernel, schedule)]
    splits, own = schedule.splits, len(kernel.params)
    rows = (part.tokens, part.num_heads)
    spaces = {
        "partial": TensorType((splits, *rows, part.value_dim), f32),
        "largest": TensorType((splits, *rows), f32),
        "total": TensorType((splits, *rows), f32),
    }
    join = ReduceSchedule(min(128, power_of_2(part.value_dim)), power_of_2(splits), True, 4)
    second = _join(part, splits, own), join
    return handed_on(kernel, (part, schedule), second, spaces, ("_split", "_join"))


def _join(part: Attention, splits: int, own: int) -> Reduce:
    """out = sum_s partial_s exp(largest_s - top) / sum_s total_s exp(largest_s - top).

    Rows are those of the output in memory, in whatever order its views put them.
    """
    names = ("_token", "_head", "_at")
    extents = (part.tokens, part.num_heads, part.value_dim)
    split, token, head, at = (symbol(n) for n in ("_split", *names))
    row = (split * part.tokens + token) * part.num_heads + head
    largest, total = Load(own + 1, row, f32), Load(own + 2, row, f32)
    partial = Load(own, row * part.value_dim + at, f32)
    nothing = Apply("eq", (Ref("top", f32), Const(float("-inf"), f32)), f32)
    top = Apply("where", (nothing, Const(0.0, f32), Ref("top", f32)), f32)
    weight = Apply("exp", (Apply("sub", (largest, top), f32),), f32)

    def weighted(value: Element) -> Element:
        return Apply("mul", (value, weight), f32)

    sums = (
        Reduction("sum", SUM, weighted(partial)),
        Reduction("mass", SUM, weighted(total)),
    )
    mass = Ref("mass", f32)
    safe = Apply("where", (Apply("eq", (mass, Const(0.0, f32)), f32), Const(1.0, f32), mass), f32)
    value = Apply("div", (Ref("sum", f32), safe), f32)
    out = (token * part.num_heads + head) * part.value_dim + at
    return Reduce(
        tuple(Axis(n, d) for n, d in zip(names, extents)),
        Axis("_split", splits),
        ((Reduction("top", LARGEST, largest),), sums),
        (Store(part.out.param, out, value),),
        (),
    )
