"""Resizing, and sampling at positions."""

from functools import partial
from typing import Any

from ...ir.graph import Value
from ..importer import Call, handles
from ..nn.grid_sample import grid_sample
from ..nn.resize import Mix, Positions, resize

_INTERPOLATION = ("linear", "nearest", "cubic")  # by torch's number
_PADDING = ("zeros", "border", "reflection")


def _resized(call: Call, x: Value, mix: Mix, transform: str, scales: Any) -> Value:
    """X in the shape that torch computed. `scales` (new / old, or None) are what it was given."""
    rank = len(call.shape) - 2
    axes = range(2, rank + 2)
    given = scales if scales and len(scales) == rank else [None] * rank
    at = []
    for axis, scale in zip(axes, given):
        size, count = x.shape[axis], call.shape[axis]
        if transform == "align_corners" and mix.antialias:
            # torch's formula there: the steps between corners, from half a step on
            size = call.static(size, "a size that is resized without aliasing")
            count = call.static(count, "a size to resize to without aliasing")
            step = (size - 1) / (count - 1) if count > 1 else 0.0
            at.append(Positions("half_pixel", inverse=step))
            continue
        inverse = None if scale is None or scale <= 0 else 1.0 / scale
        at.append(Positions(transform, inverse=inverse))
    return resize(call.b, x, axes, call.shape[2:], mix, at)


def _nearest(call: Call, x: Value, _: Any, *scales: Any, transform: str) -> Value:
    return _resized(call, x, Mix("nearest"), transform, _flat(scales))


def _weighed(call: Call, x: Value, _: Any, align_corners: bool, *scales: Any, mix: Mix) -> Value:
    transform = "align_corners" if align_corners else "half_pixel"
    return _resized(call, x, mix, transform, _flat(scales))


def _flat(scales: tuple[Any, ...]) -> Any:
    """The numbers of `scales`, one by one or (`.vec`) as one list."""
    return scales[0] if len(scales) == 1 and isinstance(scales[0], tuple | list) else scales


def _register(name: str, handler: Any, **given: Any) -> None:
    handles(f"{name}.default", f"{name}.vec")(partial(handler, **given))


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _nearest, transform="asymmetric")
    _register(f"_upsample_nearest_exact{_rank}d", _nearest, transform="tf_half_pixel_for_nn")
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _register(_name, _weighed, mix=Mix("linear"))
_register("upsample_bicubic2d", _weighed, mix=Mix("cubic"))
_register(
    "_upsample_bilinear2d_aa", _weighed, mix=Mix("linear", antialias=True, drops_outside=True)
)
_register(
    "_upsample_bicubic2d_aa",
    _weighed,
    mix=Mix("cubic", cubic=-0.5, antialias=True, drops_outside=True),
)


@handles("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid_sampler(
    call: Call, x: Value, grid: Value, interpolation: int, padding: int, align_corners: bool
) -> Value:
    return grid_sample(
        call.b,
        x,
        grid,
        mode=_INTERPOLATION[interpolation],
        padding=_PADDING[padding],
        align_corners=align_corners,
    )
