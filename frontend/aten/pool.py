"""Pooling, and windows laid out as columns."""

from functools import partial
from typing import Any

from ...ir.dim import Dim, product
from ...ir.graph import Value
from ..importer import Call, handles
from ..nn.pool import (
    Windows,
    adaptive_max_places,
    adaptive_pool,
    avg_pool,
    max_pool,
    max_pool_places,
)
from .conv import Ints, each


def _windows(
    call: Call,
    rank: int,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> Windows:
    kernel = each(kernel, rank)
    strides = each(stride, rank) if stride not in ((), [], None) else kernel
    around = [(p, p) for p in each(padding, rank)]
    return Windows(call.facts, kernel, strides, around, each(dilation, rank), ceil_mode)


def _max_pool(
    call: Call,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    rank: int,
    with_places: bool,
) -> Any:
    windows = _windows(call, rank, kernel, stride, padding, dilation, ceil_mode)
    largest = max_pool(call.b, x, windows)
    return (largest, max_pool_places(call.b, x, windows)) if with_places else largest


def _avg_pool(
    call: Call,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int,
) -> Value:
    windows = _windows(call, rank, kernel, stride, padding, 1, ceil_mode)
    return avg_pool(call.b, x, windows, counts_padding=count_include_pad, divisor=divisor_override)


def _adaptive_avg(call: Call, x: Value, sizes: tuple[Dim, ...]) -> Value:
    return adaptive_pool(call.b, x, sizes, largest=False)


def _adaptive_max(call: Call, x: Value, sizes: tuple[Dim, ...]) -> tuple[Value, Value]:
    largest = adaptive_pool(call.b, x, sizes, largest=True)
    return largest, adaptive_max_places(call.b, x, sizes)


for _rank in (1, 2, 3):
    for _name, _places in ((f"max_pool{_rank}d", False), (f"max_pool{_rank}d_with_indices", True)):
        handles(f"{_name}.default")(partial(_max_pool, rank=_rank, with_places=_places))
    handles(f"avg_pool{_rank}d.default")(partial(_avg_pool, rank=_rank))
    handles(f"adaptive_avg_pool{_rank}d.default")(_adaptive_avg)
    handles(f"adaptive_max_pool{_rank}d.default")(_adaptive_max)
    if _rank > 1:
        handles(f"_adaptive_avg_pool{_rank}d.default")(_adaptive_avg)


@handles("im2col.default")
def _im2col(
    call: Call, x: Value, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Value:
    """[N, C, H, W] -> [N, C * windows' elements, windows]."""
    b, rank = call.b, x.type.rank
    windows = _windows(call, 2, kernel, stride, padding, dilation, False).of(b, x, 0)
    *batch, channels, high, wide, i, j = range(rank + 2)
    turned = b.transpose(windows, perm=(*batch, channels, i, j, high, wide))
    sizes = (product(turned.shape[rank - 3 : rank]), product(turned.shape[rank:]))
    return call.reshape(turned, (*turned.shape[: rank - 3], *sizes))
