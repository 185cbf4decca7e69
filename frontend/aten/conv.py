"""Convolution, and convolution the other way."""

from functools import partial
from typing import Any

from ...ir.graph import Value
from ..importer import Call, handles
from ..nn.conv import conv, conv_transpose

Ints = int | tuple[int, ...]


@handles("conv1d.default", "conv2d.default", "conv3d.default")
@handles("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Value:
    return _convolution(call, x, w, bias, stride, padding, dilation, False, 0, groups)


@handles("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Value:
    return _convolution(call, x, w, bias, stride, padding, dilation, True, output_padding, groups)


@handles("convolution.default", "_convolution.default")
def _convolution(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Ints,
    padding: Ints | str,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *_: Any,
) -> Value:
    rank = w.type.rank - 2
    if is_one := x.type.rank == rank + 1:  # one sequence, image or volume, without a batch
        x = call.reshape(x, (1, *x.shape))
    stride, dilation = each(stride, rank), each(dilation, rank)
    around = _around(padding, w, dilation)
    build = conv
    if transposed:
        build = partial(conv_transpose, output_padding=each(output_padding, rank))
    result = build(
        call.b, x, w, bias, strides=stride, padding=around, dilation=dilation, groups=groups
    )
    return call.reshape(result, result.shape[1:]) if is_one else result


def each(given: Ints, count: int) -> tuple[int, ...]:
    """One number for each of `count` axes, as torch reads one number for all."""
    numbers = given if isinstance(given, tuple | list) else (given,)
    return tuple(numbers) * (count if len(numbers) == 1 else 1)


def _around(padding: Ints | str, w: Value, dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """(before, after) for each axis. "same" puts what is odd behind."""
    if padding == "valid":
        padding = 0
    if isinstance(padding, str):
        whole = [(size - 1) * apart for size, apart in zip(w.shape[2:], dilation)]
        return [(total // 2, total - total // 2) for total in whole]
    return [(p, p) for p in each(padding, w.type.rank - 2)]
