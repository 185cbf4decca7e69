"""Choosing among boxes in pictures."""

from ....ir import types
from ....ir.graph import Value
from ...nn.pad import part
from ...nn.scan import repeated
from ..rows import Call, onnx_op
from .index import places


@onnx_op("NonMaxSuppression")
def _non_max_suppression(
    call: Call,
    boxes: Value,
    scores: Value,
    limit: Value | None = None,
    overlap: Value | None = None,
    least: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """Boxes [N, B, 4], scores [N, C, B] -> rows (batch, class, box), likeliest first in each class.

    One class of one picture takes a box a step, and drops those that overlap it: those whose
    intersection is more than `overlap` of the union. It ends where none is left, or at `limit`.
    """
    b, (batch, classes, count) = call.b, scores.shape
    f32, i64 = types.f32, types.i64

    def number(x: Value | None, default: float, dtype: types.DType) -> Value:
        return call.number(default, dtype) if x is None else call.cast(call.reshape(x, ()), dtype)

    most, overlap = number(limit, 0, i64), number(overlap, 0.0, f32)
    low, high = _corners(call, boxes, center_point_box)
    low, high = (
        call.reshape(
            call.broadcast(call.reshape(v, (batch, 1, count, 2)), (batch, classes, count, 2)),
            (batch * classes, count, 2),
        )
        for v in (low, high)
    )
    left = call.reshape(scores, (batch * classes, count))
    is_left = b.full(value=True, shape=left.shape, dtype=types.bool_)
    if least is not None:
        is_left = b.gt(left, number(least, 0.0, f32))
    order = b.full(value=-1, shape=left.shape, dtype=i64)  # the box that each step took

    def goes_on(b, step, is_left, order, *_):
        return (b.and_(b.any(is_left, axes=(0, 1)), b.lt(step, _[-1])),)

    def take(b, step, is_left, order, scores, low, high, overlap, most):
        numbers = b.iota(length=count)
        nothing = b.constant(float("-inf"), f32)
        box = b.argmax(b.where(is_left, scores, nothing), axis=1, keepdims=True)
        found = b.any(is_left, axes=(1,), keepdims=True)
        is_now = b.and_(b.eq(numbers, step), found)
        order = b.where(is_now, box, order)
        index = b.broadcast_to(b.reshape(box, shape=(*box.shape, 1)), shape=(*box.shape, 2))
        inner = b.minimum(high, b.gather_elements(high, index, axis=1))
        outer = b.maximum(low, b.gather_elements(low, index, axis=1))
        shared = _area(b, b.maximum(b.sub(inner, outer), b.constant(0.0, f32)))
        area = _area(b, b.sub(high, low))
        union = b.sub(b.add(area, b.gather_elements(area, box, axis=1)), shared)
        # of an empty union nothing is shared
        drops = b.gt(shared, b.mul(union, overlap))
        stays = b.and_(b.not_(drops), b.ne(numbers, box))
        return b.add(step, b.constant(1, i64)), b.and_(is_left, stays), order

    states = [call.number(0, i64), is_left, order]
    _, _, order = repeated(b, goes_on, take, states, [left, low, high, overlap, most])
    rows = places(call, b.ge(order, call.number(0, i64)))
    row, step = (part(b, rows, 1, i, i + 1) for i in range(2))
    flat = b.add(b.mul(row, b.dim_value(value=count)), step)
    box = b.gather(call.reshape(order, (order.type.numel,)), flat, axis=0)
    kinds = b.dim_value(value=classes)
    return b.concat(b.floordiv(row, kinds), b.mod(row, kinds), box, axis=1)


def _corners(call: Call, boxes: Value, is_center: int) -> tuple[Value, Value]:
    """The corner near the origin, and the other one: [N, B, 2] each."""
    b = call.b
    first, second = (part(b, boxes, 2, i, i + 2) for i in (0, 2))
    if is_center:
        half = b.mul(second, call.number(0.5, boxes.dtype))
        first, second = b.sub(first, half), b.add(first, half)
    return b.minimum(first, second), b.maximum(first, second)


def _area(b, sides: Value) -> Value:
    first, second = (b.slice(sides, axis=-1, start=i, stop=i + 1) for i in range(2))
    return b.reshape(b.mul(first, second), shape=sides.shape[:-1])
