"""Resizing of pictures, and reading them at places between their elements."""

from collections.abc import Sequence

import numpy as np

from ....ir.dim import Dim, floordiv, product
from ....ir.graph import Value
from ...nn.grid_sample import grid_sample
from ...nn.resize import Mix, Positions, resize
from ..operators import Call, Declined, onnx_op


@onnx_op("Resize", since=11)
def _resize(
    call: Call,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: bool = False,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    chosen = call.axes(range(x.type.rank) if axes is None else axes, x.type.rank)
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    mix = Mix(
        mode,
        rounding=nearest_mode,
        cubic=cubic_coeff_a,
        antialias=antialias,
        drops_outside=exclude_outside,
        outside=extrapolation_value if crops else None,
    )
    spans = [(0.0, 1.0)] * len(chosen)
    if crops and roi is not None:
        ends = call.constant(roi).astype(np.float64).reshape(2, -1).T
        spans = [(float(start), float(end)) for start, end in ends]
    if sizes is not None and sizes.type.numel != 0:
        counts, factors = _by_sizes(call, x, chosen, call.sizes(sizes), keep_aspect_ratio_policy)
    elif scales is not None:
        counts, factors = _by_scales(x, chosen, call.constant(scales), spans)
    else:
        raise ValueError("it has neither scales nor sizes")
    at = [
        Positions(coordinate_transformation_mode, scale=factor, span=span)
        for factor, span in zip(factors, spans, strict=True)
    ]
    return resize(call.b, x, chosen, counts, mix, at)


def _by_scales(
    x: Value, axes: Sequence[int], scales: np.ndarray, spans: Sequence[tuple[float, float]]
) -> tuple[list[Dim], list[float | None]]:
    counts: list[Dim] = []
    numbers: list[float] = scales.reshape(-1).tolist()
    for axis, scale, (start, end) in zip(axes, numbers, spans, strict=True):
        size, factor = x.shape[axis], scale * (end - start)
        if isinstance(size, int):
            counts.append(int(np.floor(size * factor)))
        elif factor.is_integer():
            counts.append(size * int(factor))
        elif (1 / factor).is_integer():
            counts.append(floordiv(size, int(1 / factor)))
        else:
            raise Declined(f"an axis of {size} times {scale}")
    return counts, [*numbers]


def _by_sizes(
    call: Call, x: Value, axes: Sequence[int], sizes: Sequence[Dim], policy: str
) -> tuple[list[Dim], list[float | None]]:
    if policy == "stretch":
        return list(sizes), [
            to / size if isinstance(to, int) and isinstance(size, int) and size else None
            for to, size in zip(sizes, (x.shape[axis] for axis in axes), strict=True)
        ]
    now = [call.static(x.shape[axis], "a size") for axis in axes]
    wanted = [call.static(size, "a size") for size in sizes]
    ratios = [to / size for to, size in zip(wanted, now, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(np.floor(scale * size + 0.5)) for size in now], [scale] * len(now)


@onnx_op("Resize", since=10)
@onnx_op("Upsample", since=9)
def _upsample(call: Call, x: Value, scales: Value, *, mode: str = "nearest") -> Value:
    return _upsampled(call, x, call.constant(scales), mode)


@onnx_op("Upsample")
def _upsample_7(call: Call, x: Value, *, scales: tuple[float, ...], mode: str = "nearest") -> Value:
    return _upsampled(call, x, np.array(scales), mode)


def _upsampled(call: Call, x: Value, scales: np.ndarray, mode: str) -> Value:
    axes = range(x.type.rank)
    counts, factors = _by_scales(x, axes, scales, [(0.0, 1.0)] * len(axes))
    at = [Positions("asymmetric", scale=factor) for factor in factors]
    return resize(call.b, x, axes, counts, Mix({"bilinear": "linear"}.get(mode, mode)), at)


@onnx_op("GridSample")
def _grid_sample(
    call: Call,
    x: Value,
    grid: Value,
    *,
    align_corners: bool = False,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Value:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return grid_sample(
        call.b,
        x,
        grid,
        mode=names.get(mode, mode),
        padding=padding_mode,
        align_corners=align_corners,
    )


@onnx_op("AffineGrid")
def _affine_grid(call: Call, theta: Value, size: Value, *, align_corners: bool = False) -> Value:
    """theta @ [position.., 1] for each position of a picture of `size`, from -1 to 1."""
    b, dtype = call.b, theta.dtype
    batch, _, *space = call.sizes(size)
    columns = []
    for number, count in reversed(list(enumerate(space))):  # x before y before z
        line = b.iota(length=count, dtype=dtype)
        if align_corners:
            width = b.maximum(b.dim_value(value=count - 1, dtype=dtype), call.number(1, dtype))
            line = b.div(b.mul(line, call.number(2, dtype)), width)
        else:
            line = b.mul(b.add(line, call.number(0.5, dtype)), call.number(2, dtype))
            line = b.div(line, b.dim_value(value=count, dtype=dtype))
        line = b.sub(line, call.number(1, dtype))
        along = [1] * len(space)
        along[number] = count
        columns.append(call.broadcast(call.reshape(line, (*along, 1)), (*space, 1)))
    ones = b.full(value=1.0, shape=(*space, 1), dtype=dtype)
    places = b.concat(*columns, ones, axis=len(space))
    flat = call.reshape(places, (product(space), len(space) + 1))
    result = b.matmul(flat, theta, transpose_w=True)
    return call.reshape(result, (batch, *space, len(space)))
