"""Convolution and pooling."""

from collections.abc import Sequence

from ....ir import types
from ....ir.dim import Dim, ceildiv, floordiv, maximum, product
from ....ir.graph import Value
from ....ir.ops.view import window_span
from ...nn import conv as convs
from ...nn import pool
from ...nn.deform_conv import deform_conv
from ..operators import Call, Declined, onnx_op

Ints = tuple[int, ...]
Pairs = list[tuple[Dim, Dim]]


def paddings(
    call: Call,
    x: Value,
    auto: str,
    pads: Ints | None,
    spans: Sequence[int],
    strides: Sequence[int],
) -> Pairs:
    """(before, after) of each spatial axis, as `pads` or `auto_pad` has it.

    SAME: as many results as there are strides in the axis; `spans` are the windows' lengths.
    """
    count = len(spans)
    if auto in ("NOTSET", ""):
        given = pads or (0,) * (2 * count)
        return list(zip(given[:count], given[count:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * count
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise Declined(f"auto_pad {auto!r}")
    result: Pairs = []
    for size, span, step in zip(x.shape[2:], spans, strides):
        total = (ceildiv(size, step) - 1) * step + span - size
        if not call.facts.proved_le(0, total):
            total = maximum(total, 0)
        less = floordiv(total, 2)
        result.append((less, total - less) if auto == "SAME_UPPER" else (total - less, less))
    return result


def _laid(
    kernel: Ints, strides: Ints | None, dilations: Ints | None
) -> tuple[Ints, Ints, list[int]]:
    """Strides and dilations, 1 where they are left out, and how long windows are."""
    ones = (1,) * len(kernel)
    strides, dilations = strides or ones, dilations or ones
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise ValueError(f"windows of {kernel}, {strides} apart, elements {dilations} apart")
    spans = [window_span(size, apart) for size, apart in zip(kernel, dilations, strict=True)]
    return strides, dilations, spans


def _windows(
    call: Call,
    x: Value,
    kernel: Ints,
    strides: Ints | None,
    pads: Ints | None,
    dilations: Ints | None,
    auto_pad: str,
    ceil_mode: bool = False,
) -> pool.Windows:
    if len(kernel) != x.type.rank - 2:
        raise ValueError(f"windows of {kernel} over {x.type}")
    strides, dilations, spans = _laid(kernel, strides, dilations)
    padding = paddings(call, x, auto_pad, pads, spans, strides)
    return pool.Windows(call.facts, kernel, strides, padding, dilations, ceil_mode)


def _kernel(call: Call, x: Value, w: Value, given: Ints | None) -> Ints:
    """The sizes of a kernel w that goes over x; `given` says them again."""
    if w.type.rank != x.type.rank:
        raise ValueError(f"a kernel of {w.type} over {x.type}")
    sizes = tuple(call.static(dim, "the size of a kernel") for dim in w.shape[2:])
    if given not in (None, sizes):
        raise ValueError(f"kernel_shape is {given}, the kernel {w.type}")
    return sizes


@onnx_op("Conv")
def _conv(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    kernel = _kernel(call, x, w, kernel_shape)
    windows = _windows(call, x, kernel, strides, pads, dilations, auto_pad)
    return convs.conv(
        call.b,
        x,
        w,
        bias,
        strides=windows.strides,
        padding=windows.padding,
        dilation=windows.dilation,
        groups=group,
    )


@onnx_op("ConvTranspose")
def _conv_transpose(
    call: Call,
    x: Value,
    w: Value,
    bias: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    count = x.type.rank - 2
    strides, dilations, spans = _laid(_kernel(call, x, w, kernel_shape), strides, dilations)
    more = output_padding or (0,) * count
    padding: Pairs = []
    if output_shape is None and not auto_pad.startswith("SAME"):
        padding = paddings(call, x, auto_pad, pads, spans, strides)
    else:
        for i, size in enumerate(x.shape[2:]):
            full = (size - 1) * strides[i] + spans[i] + more[i]
            wanted = size * strides[i] if output_shape is None else output_shape[-count:][i]
            total = call.static(full - wanted, "the padding")
            low, high = total // 2, total - total // 2
            padding.append((low, high) if auto_pad == "SAME_UPPER" else (high, low))
    return convs.conv_transpose(
        call.b,
        x,
        w,
        bias,
        strides=strides,
        padding=padding,
        dilation=dilations,
        groups=group,
        output_padding=more,
    )


@onnx_op("DeformConv")
def _deform_conv(
    call: Call,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    kernel = _kernel(call, x, w, kernel_shape)
    strides, dilations, _ = _laid(kernel, strides, dilations)
    return deform_conv(
        call.b,
        x,
        w,
        offset,
        mask,
        bias,
        strides=strides,
        padding=(pads or (0,) * len(kernel))[: len(kernel)],
        dilation=dilations,
        groups=group,
        offset_groups=offset_group,
    )


# ---- pooling -------------------------------------------------------------------------------


@onnx_op("MaxPool")
def _max_pool(
    call: Call,
    x: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: bool = False,
    strides: Ints | None = None,
) -> Value | tuple[Value, Value]:
    windows = _windows(call, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    result = pool.max_pool(call.b, x, windows)
    if call.num_outputs < 2:
        return result
    places = pool.max_pool_places(call.b, x, windows)
    return result, _in_whole(call, x, places, storage_order)


def _in_whole(call: Call, x: Value, places: Value, storage_order: bool) -> Value:
    """Places among the spatial elements as places in all of x; the last axis slow on demand."""
    b = call.b
    batch, channels, *space = x.shape
    if storage_order:
        rows, columns = space
        width, height = (b.dim_value(value=d, dtype=types.i64) for d in (columns, rows))
        places = b.add(b.mul(b.mod(places, width), height), b.floordiv(places, width))
    count = b.dim_value(value=product(space), dtype=types.i64)
    number = b.iota(length=batch * channels)
    number = call.reshape(number, (batch, channels, *[1] * len(space)))
    return b.add(places, b.mul(number, count))


@onnx_op("AveragePool")
def _average_pool(
    call: Call,
    x: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    windows = _windows(call, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    return pool.avg_pool(call.b, x, windows, counts_padding=count_include_pad)


@onnx_op("LpPool")
def _lp_pool(
    call: Call,
    x: Value,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Value:
    windows = _windows(call, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    if p < 1:
        raise ValueError(f"the norm of p = {p}")
    return pool.lp_pool(call.b, x, windows, p)


@onnx_op("GlobalAveragePool")
def _global_average(call: Call, x: Value) -> Value:
    return call.b.mean(x, axes=tuple(range(2, x.type.rank)), keepdims=True)


@onnx_op("GlobalMaxPool")
def _global_max(call: Call, x: Value) -> Value:
    return call.b.max(x, axes=tuple(range(2, x.type.rank)), keepdims=True)
