"""Boxes in pictures: choosing among them, and what is in them."""

from functools import reduce
from typing import Any

from ....ir import types
from ....ir.dim import Dim
from ....ir.graph import Value
from ...declined import Declined
from ...nn.pad import part
from ...nn.scan import repeated
from ..operators import Call, onnx_op
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
    center_point_box: bool = False,
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

    def goes_on(b, step, is_left, order, *others):
        return (b.and_(b.any(is_left, axes=(0, 1)), b.lt(step, others[-1])),)

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


# ---- what is in boxes ------------------------------------------------------------------------


@onnx_op("RoiAlign", since=16)
def _roi_align(
    call: Call,
    x: Value,
    boxes: Value,
    batch: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    """x [N, C, H, W], boxes [R, 4] as x1, y1, x2, y2 -> [R, C, *sizes].

    Each box is cut in parts, each part has samples^2 points, and a point is interpolated between
    the four elements around it: their sum and the mean of the points, or the largest of all.
    He et al., "Mask R-CNN", 2017, section 3.
    """
    sizes, samples = (output_height, output_width), sampling_ratio
    offset = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    if samples < 1:
        raise Declined("as many points as the sizes of a box say")
    if mode not in ("avg", "max"):
        raise Declined(f"mode {mode!r}")
    b, (pictures, channels, height, width) = call.b, x.shape
    count = boxes.shape[0]
    scale, shift = (call.number(v, boxes.dtype) for v in (spatial_scale, offset))
    edges = b.sub(b.mul(boxes, scale), shift)
    rows = _around(call, edges, 1, sizes[0], samples, height, not offset)
    columns = _around(call, edges, 0, sizes[1], samples, width, not offset)
    pixels = call.reshape(call.transpose(x, (0, 2, 3, 1)), (pictures * height * width, channels))
    first = b.mul(call.cast(batch, types.i64), b.dim_value(value=height * width))
    first = call.reshape(first, (count, 1, 1))
    down, right = sizes[0] * samples, sizes[1] * samples
    corners = []
    for row, row_weight in rows:
        for column, column_weight in columns:
            place = b.mul(call.reshape(row, (count, down, 1)), b.dim_value(value=width))
            place = b.add(b.add(first, place), call.reshape(column, (count, 1, right)))
            weight = b.mul(
                call.reshape(row_weight, (count, down, 1, 1)),
                call.reshape(column_weight, (count, 1, right, 1)),
            )
            corners.append(b.mul(b.gather(pixels, place, axis=0), weight))
    joined = reduce(b.add if mode == "avg" else b.maximum, corners)
    parts = call.reshape(joined, (count, sizes[0], samples, sizes[1], samples, channels))
    found = (b.mean if mode == "avg" else b.max)(parts, axes=(2, 4))
    return call.transpose(found, (0, 3, 1, 2))


_OLD = "mode output_height output_width sampling_ratio spatial_scale"


@onnx_op("RoiAlign", attributes=dict.fromkeys(_OLD.split()))
def _roi_align_before_16(call: Call, x: Value, boxes: Value, batch: Value, **options: Any) -> Value:
    whole = "output_half_pixel"  # boxes begin and end at elements
    return _roi_align(call, x, boxes, batch, coordinate_transformation_mode=whole, **options)


def _around(
    call: Call,
    edges: Value,
    axis: int,
    parts: int,
    samples: int,
    size: Dim,
    has_extent: bool,
) -> list[tuple[Value, Value]]:
    """The elements before and after each point along an axis, and their weights: [R, points].

    Points up to 1 before the first element, or `size`, are on the outermost; others have none.
    With has_extent a box is at least 1 long.
    """
    b, dtype = call.b, edges.dtype
    start, end = (part(b, edges, 1, i, i + 1) for i in (axis, axis + 2))
    extent = b.sub(end, start)
    extent = b.maximum(extent, call.number(1.0, dtype)) if has_extent else extent
    step = b.div(extent, call.number(parts * samples, dtype))
    middle = b.add(b.iota(length=parts * samples, dtype=dtype), call.number(0.5, dtype))
    at = b.add(start, b.mul(middle, step))
    last = b.dim_value(value=size - 1, dtype=dtype)
    inside = b.and_(
        b.ge(at, call.number(-1.0, dtype)), b.le(at, b.dim_value(value=size, dtype=dtype))
    )
    zero, one = call.number(0.0, dtype), call.number(1.0, dtype)
    at = b.minimum(b.maximum(at, zero), last)
    low = b.floor(at)
    share = b.sub(at, low)
    high = b.minimum(b.add(low, one), last)
    weights = b.where(inside, b.sub(one, share), zero), b.where(inside, share, zero)
    return [(call.cast(v, types.i64), w) for v, w in zip((low, high), weights)]
