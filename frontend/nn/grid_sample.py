"""Elements at positions that a tensor gives, mixed of their neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ...ir.builder import Builder
from ...ir.dim import Dim
from ...ir.dim import product as product_of
from ...ir.graph import Value
from ...ir.types import f32, f64, i64
from ..declined import Declined
from .resize import Mix, held, index_inside

PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class _Tap:
    """A neighbour along one axis: where it stands, and what it weighs. Each is [N, P]."""

    index: Value
    weight: Value | None


def grid_sample(
    b: Builder, x: Value, grid: Value, *, mode: str, padding: str, align_corners: bool
) -> Value:
    """x: [N, C, *S], grid: [N, *O, axes] -> [N, C, *O].

    grid[.., 0] says where on the last axis of x, from -1 to 1: the centers of the outer elements
    (`align_corners`), else their outer edges. mode: nearest, linear or cubic, as of `Mix`. padding
    is what lies outside: zeros, the border, or x mirrored at it. Computed in float32 (float64 for
    float64).
    """
    batch, channels, *sizes = x.shape
    wide = f64 if x.dtype == f64 else f32
    _, *space, axes = grid.shape
    count = product_of(space)
    flat = b.cast(b.reshape(grid, shape=(batch, count, axes)), dtype=wide)
    places = []
    for number, size in enumerate(sizes):
        at = len(sizes) - 1 - number  # the last axis of x comes first
        place = b.reshape(b.slice(flat, axis=2, start=at, stop=at + 1), shape=(batch, count))
        places.append(_unscaled(b, place, size, align_corners))
    found = sample(b, x, places, mode=mode, padding=padding, align_corners=align_corners)
    return b.reshape(found, shape=(batch, channels, *space))


def sample(
    b: Builder,
    x: Value,
    places: Sequence[Value],
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = True,
) -> Value:
    """x: [N, C, *S], places: [N, P] for each axis of S, counted in its elements -> [N, C, P].

    Places are f32, or f64 of an x of f64; see `grid_sample`.
    """
    if padding not in PADDINGS or mode not in ("nearest", "linear", "cubic"):
        raise Declined(f"sampling of mode {mode!r} and padding {padding!r}")
    batch, channels, *sizes = x.shape
    wide, count = places[0].dtype, places[0].shape[1]
    taps = [
        _taps(b, place, size, mode, padding, align_corners) for place, size in zip(places, sizes)
    ]
    values = b.reshape(x, shape=(batch, channels, product_of(sizes)))
    total = None
    for corner in product(*taps):
        index, weight = None, None
        for size, tap in zip(sizes, corner):
            row = b.dim_value(value=size, dtype=i64)
            index = tap.index if index is None else b.add(b.mul(index, row), tap.index)
            if tap.weight is not None:
                weight = tap.weight if weight is None else b.mul(weight, tap.weight)
        assert index is not None, "there is an axis to sample along"
        index = b.reshape(index, shape=(batch, 1, count))
        index = b.broadcast_to(index, shape=(batch, channels, count))
        part = b.cast(b.gather_elements(values, index, axis=2), dtype=wide)
        if weight is not None:
            part = b.mul(part, b.reshape(weight, shape=(batch, 1, count)))
        total = part if total is None else b.add(total, part)
    assert total is not None, "there is a neighbour"
    return b.cast(total, dtype=x.dtype)


def _taps(
    b: Builder, place: Value, size: Dim, mode: str, padding: str, align_corners: bool
) -> list[_Tap]:
    """The neighbours of positions along an axis."""
    wide = place.dtype
    if mode != "cubic":
        place = _padded(b, place, size, padding, align_corners)
    if mode == "nearest":
        return [_tap(b, b.round(place), None, size, padding)]
    mix, taps = Mix(mode), []
    first = b.floor(place)
    for offset in range(1 - mix.reach(), mix.reach() + 1):
        at = b.add(first, b.constant(float(offset), wide)) if offset else first
        weight = mix.weight(b, b.abs(b.sub(at, place)))
        if mode == "cubic":
            at = _padded(b, at, size, padding, align_corners)
        taps.append(_tap(b, at, weight, size, padding))
    return taps


def _tap(b: Builder, at: Value, weight: Value | None, size: Dim, padding: str) -> _Tap:
    """A neighbour at whole positions; outside of x it weighs nothing where the padding is zeros."""
    zero, one = b.constant(0.0, at.dtype), b.constant(1.0, at.dtype)
    if padding == "zeros":
        last = b.dim_value(value=size - 1, dtype=at.dtype)
        inside = b.and_(b.ge(at, zero), b.le(at, last))
        weight = b.where(inside, one if weight is None else weight, zero)
    return _Tap(index_inside(b, at, size), weight)


def _unscaled(b: Builder, place: Value, size: Dim, align_corners: bool) -> Value:
    """From [-1, 1] to positions on an axis."""
    wide = place.dtype
    one, two = b.constant(1.0, wide), b.constant(2.0, wide)
    half = b.div(b.add(place, one), two)
    if align_corners:
        return b.mul(half, b.dim_value(value=size - 1, dtype=wide))
    scaled = b.mul(b.add(place, one), b.dim_value(value=size, dtype=wide))
    return b.div(b.sub(scaled, one), two)


def _padded(b: Builder, place: Value, size: Dim, padding: str, align_corners: bool) -> Value:
    """Positions moved inside the axis, where the padding says so."""
    wide = place.dtype
    if padding == "zeros":
        return place
    if padding == "reflection":
        # there and back between the ends: a distance from the first modulo twice the width
        low = b.constant(0.0 if align_corners else -0.5, wide)
        width = b.dim_value(value=size - 1 if align_corners else size, dtype=wide)
        twice = b.maximum(b.mul(width, b.constant(2.0, wide)), b.constant(1.0, wide))
        along = b.mod(b.abs(b.sub(place, low)), twice)
        place = b.add(b.minimum(along, b.sub(twice, along)), low)
    return held(b, place, size)
