"""The launches of attention whose keys several programs share: partial results, and their join."""

from collections.abc import Sequence

from ...ir.dim import symbol
from ...ir.scalar import parse_scalar
from ...ir.types import TensorType, f32
from ..inline import build_scalar
from ..loops import LARGEST, SUM, Axis, Element, Load, LoopKernel, Reduce, Reduction, Ref, Store
from ..templates.attention import Attention, AttentionSchedule
from ..templates.reduce import ReduceSchedule
from ..templates.template import power_of_2
from .split_kernels import Piece, handed_on

# in the terms of `_join`; `nothing` is minus infinity, the largest of no score
_WEIGHTED = "x * exp(largest - where(top == nothing, 0, top))"
_JOINED = "sum / where(mass == 0, 1, mass)"


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
    top = Ref("top", f32)
    sums = (
        Reduction("sum", SUM, _expression(_WEIGHTED, x=partial, largest=largest, top=top)),
        Reduction("mass", SUM, _expression(_WEIGHTED, x=total, largest=largest, top=top)),
    )
    value = _expression(_JOINED, sum=Ref("sum", f32), mass=Ref("mass", f32))
    out = (token * part.num_heads + head) * part.value_dim + at
    return Reduce(
        tuple(Axis(n, d) for n, d in zip(names, extents)),
        Axis("_split", splits),
        ((Reduction("top", LARGEST, largest),), sums),
        (Store(part.out.param, out, value),),
        (),
    )


def _expression(text: str, **operands: Element) -> Element:
    tree = parse_scalar(text, tuple(operands), ("nothing",))
    return build_scalar(tree, operands, {"nothing": float("-inf")}, f32)
