"""Resizing along axes, each by itself: where a result lies on the old axis, then what it mixes.

Positions and weights are computed in float32 (float64 for float64), as torch and onnxruntime do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.builder import Builder
from ...ir.dim import Dim
from ...ir.graph import Value
from ...ir.types import DType, f32, f64, i64
from ..declined import Declined

MODES = ("nearest", "linear", "cubic")
FEW = 4  # elements up to which a mix is written out, element by element


@dataclass(frozen=True)
class Positions:
    """Where the results along an axis lie on the old axis, by the name of ONNX's Resize.

    `scale` is new size / old size, divided by; `inverse` is old / new, multiplied with; without
    both it is that of the sizes. `span`, of "tf_crop_and_resize": the part of the axis, in [0, 1].
    """

    transform: str = "half_pixel"
    scale: float | None = None
    inverse: float | None = None
    span: tuple[float, float] = (0.0, 1.0)

    @property
    def is_whole(self) -> bool:
        """Whether on an axis that stays as long every position is an element's own."""
        return self.span == (0.0, 1.0) and {self.scale, self.inverse} <= {None, 1.0}

    def of(self, b: Builder, size: Dim, count: Dim, dtype: DType) -> Value:
        """[count] positions of `dtype` on an axis of `size`."""
        i = b.iota(length=count, dtype=dtype)
        half = b.constant(0.5, dtype)
        zero = b.full(value=0.0, shape=(count,), dtype=dtype)

        def apart(least: Dim, most: Dim) -> Value:
            return _quotient(b, most, least, dtype)

        def scaled(x: Value) -> Value:
            if self.inverse is not None:
                return b.mul(x, b.constant(self.inverse, dtype))
            if self.scale is not None:
                return b.div(x, b.constant(self.scale, dtype))
            return b.mul(x, _quotient(b, size, count, dtype))

        centered = b.add(i, half)
        match self.transform:
            case "half_pixel":
                return b.sub(scaled(centered), half)
            case "pytorch_half_pixel":
                return zero if count == 1 else b.sub(scaled(centered), half)
            case "tf_half_pixel_for_nn":
                return scaled(centered)
            case "asymmetric":
                return scaled(i)
            case "align_corners":
                return zero if count == 1 else b.mul(i, apart(count - 1, size - 1))
            case "half_pixel_symmetric" if self.scale is not None and isinstance(size, int):
                shown = count / (self.scale * size) if isinstance(count, int) else 1.0
                offset = b.constant(size / 2 * (1 - shown), dtype)
                return b.add(b.sub(scaled(centered), half), offset)
            case "tf_crop_and_resize" if isinstance(size, int) and isinstance(count, int):
                start, end = self.span
                if count == 1:
                    return b.full(value=(start + end) / 2 * (size - 1), shape=(1,), dtype=dtype)
                step = b.constant((end - start) * (size - 1) / (count - 1), dtype)
                return b.add(b.mul(i, step), b.constant(start * (size - 1), dtype))
        raise Declined(f"positions by {self.transform!r} on an axis of {size}")


@dataclass(frozen=True)
class Mix:
    """What a result takes of the elements around its position.

    `rounding`, of "nearest": floor, ceil, round_prefer_floor or round_prefer_ceil. `cubic`: the
    coefficient a (Keys, "Cubic convolution interpolation", 1981, eq. 15). `antialias` widens the
    weights where the axis shrinks. `drops_outside`: elements past the ends weigh nothing, and the
    others take their share; else the end itself stands in. `outside` is the result where the
    position is past the ends, if given.
    """

    mode: str
    rounding: str = "floor"
    cubic: float = -0.75
    antialias: bool = False
    drops_outside: bool = False
    outside: float | None = None

    def reach(self) -> int:
        """From a position to the last element that weighs, on an axis that does not shrink."""
        return {"linear": 1, "cubic": 2}[self.mode]

    def weight(self, b: Builder, distance: Value) -> Value:
        """How much elements at a distance weigh, from 0 on; 0 past the reach."""
        dtype = distance.dtype

        def number(value: float) -> Value:
            return b.constant(value, dtype)

        one = number(1.0)
        if self.mode == "linear":
            return b.maximum(b.sub(one, distance), number(0.0))
        a = self.cubic
        # ((a + 2) d - (a + 3)) d d + 1 up to 1, ((a d - 5 a) d + 8 a) d - 4 a up to 2
        near = b.sub(b.mul(distance, number(a + 2)), number(a + 3))
        near = b.add(b.mul(b.mul(near, distance), distance), one)
        far = b.sub(b.mul(distance, number(a)), number(5 * a))
        far = b.add(b.mul(far, distance), number(8 * a))
        far = b.sub(b.mul(far, distance), number(4 * a))
        zero = b.full(value=0.0, shape=distance.shape, dtype=dtype)
        inner = b.where(b.lt(distance, number(2.0)), far, zero)
        return b.where(b.le(distance, one), near, inner)


def resize(
    b: Builder, x: Value, axes: Sequence[int], counts: Sequence[Dim], mix: Mix, at: Sequence
) -> Value:
    """X with `counts[i]` elements along `axes[i]`, which lie at `at[i]` (`Positions`)."""
    if mix.mode not in MODES:
        raise Declined(f"resizing of mode {mix.mode!r}: one of {', '.join(MODES)}")
    dtype = x.dtype
    if mix.mode != "nearest" and not dtype.is_float:
        x = b.cast(x, dtype=f32)
    for axis, count, positions in zip(axes, counts, at, strict=True):
        x = _along(b, x, axis, count, mix, positions)
    if x.dtype == dtype:
        return x
    return b.cast(b.round(x) if dtype.is_integer else x, dtype=dtype)


def _along(b: Builder, x: Value, axis: int, count: Dim, mix: Mix, at: Positions) -> Value:
    size, wide = x.shape[axis], f64 if x.dtype == f64 else f32
    if count == size and at.is_whole:
        return x
    asked = place = at.of(b, size, count, wide)
    if mix.mode == "nearest":
        read = b.gather(x, index_inside(b, _rounded(b, place, mix.rounding), size), axis=axis)
        return _where_inside(b, read, place, axis, size, mix)
    shrink = _shrink(size, count, at) if mix.antialias else 1.0
    if mix.antialias:
        first, taps = _window(b, place, mix, shrink)
    else:
        if mix.mode == "linear" and not mix.drops_outside:
            place = held(b, place, size)
        first, taps = b.floor(place), 2 * mix.reach()
        first = b.sub(first, b.constant(float(mix.reach() - 1), wide))
    offsets = b.iota(length=taps, dtype=wide)
    places = b.add(b.reshape(first, shape=(count, 1)), offsets)  # [count, taps]
    distance = b.abs(b.sub(places, b.reshape(place, shape=(count, 1))))
    if shrink != 1.0:
        distance = b.mul(distance, b.constant(1.0 / shrink, wide))
    weights = mix.weight(b, distance)
    if mix.drops_outside:
        last = b.dim_value(value=size - 1, dtype=wide)
        valid = b.and_(b.ge(places, b.constant(0.0, wide)), b.le(places, last))
        weights = b.where(valid, weights, b.constant(0.0, wide))
    if mix.drops_outside or mix.antialias:
        weights = b.div(weights, b.sum(weights, axes=(1,), keepdims=True))
    mixed = _mixed(b, x, axis, index_inside(b, places, size), weights, taps)
    return _where_inside(b, mixed, asked, axis, size, mix)


def _mixed(b: Builder, x: Value, axis: int, index: Value, weights: Value, taps: int) -> Value:
    """The elements at index [count, taps] along axis, weighed and summed in the weights' dtype."""
    count, dtype = index.shape[0], x.dtype
    x = b.cast(x, dtype=weights.dtype)
    after = (1,) * (x.type.rank - axis - 1)
    if taps > FEW:
        read = b.gather(x, index, axis=axis)
        weights = b.reshape(weights, shape=(count, taps, *after))
        return b.cast(b.sum(b.mul(read, weights), axes=(axis + 1,)), dtype=dtype)
    total = None
    for tap in range(taps):
        where = b.reshape(b.slice(index, axis=1, start=tap, stop=tap + 1), shape=(count,))
        weight = b.slice(weights, axis=1, start=tap, stop=tap + 1)
        part = b.mul(b.gather(x, where, axis=axis), b.reshape(weight, shape=(count, *after)))
        total = part if total is None else b.add(total, part)
    assert total is not None, "a mix has taps"
    return b.cast(total, dtype=dtype)


def _window(b: Builder, place: Value, mix: Mix, shrink: float) -> tuple[Value, int]:
    """The first element that may weigh at each position, and how many may."""
    reach = mix.reach() * shrink
    dtype = place.dtype
    first = b.ceil(b.sub(place, b.constant(reach, dtype)))
    return first, math.floor(2 * reach) + 1


def _shrink(size: Dim, count: Dim, at: Positions) -> float:
    """By how much an axis shrinks, at least 1."""
    if at.inverse is not None:
        return max(at.inverse, 1.0)
    if at.scale is not None:
        return max(1.0 / at.scale, 1.0)
    if not isinstance(size, int) or not isinstance(count, int):
        raise Declined(f"an axis of {size} to {count} without aliasing: must be known numbers")
    if at.transform == "align_corners":
        return max((size - 1) / (count - 1), 1.0) if count > 1 else 1.0
    return max(size / count, 1.0)


def _rounded(b: Builder, place: Value, how: str) -> Value:
    half = b.constant(0.5, place.dtype)
    match how:
        case "floor":
            return b.floor(place)
        case "ceil":
            return b.ceil(place)
        case "round_prefer_floor":
            return b.ceil(b.sub(place, half))
        case "round_prefer_ceil":
            return b.floor(b.add(place, half))
    raise Declined(f"rounding of positions by {how!r}")


def held(b: Builder, place: Value, size: Dim) -> Value:
    """Positions held inside the axis."""
    last = b.dim_value(value=size - 1, dtype=place.dtype)
    return b.minimum(b.maximum(place, b.constant(0.0, place.dtype)), last)


def index_inside(b: Builder, place: Value, size: Dim) -> Value:
    """Whole positions as an index, those past the ends at the ends."""
    index = b.maximum(b.cast(place, dtype=i64), b.constant(0, i64))
    return b.minimum(index, b.dim_value(value=size - 1, dtype=i64))


def _where_inside(b: Builder, x: Value, place: Value, axis: int, size: Dim, mix: Mix) -> Value:
    if mix.outside is None:
        return x
    last = b.dim_value(value=size - 1, dtype=place.dtype)
    valid = b.and_(b.ge(place, b.constant(0.0, place.dtype)), b.le(place, last))
    valid = b.reshape(valid, shape=(*place.shape, *[1] * (x.type.rank - axis - 1)))
    return b.where(valid, x, b.constant(mix.outside, x.dtype))


def _quotient(b: Builder, x: Dim, y: Dim, dtype: DType) -> Value:
    if isinstance(x, int) and isinstance(y, int):
        return b.constant(float(dtype.numpy.type(x) / dtype.numpy.type(y)), dtype)
    return b.div(b.dim_value(value=x, dtype=dtype), b.dim_value(value=y, dtype=dtype))
