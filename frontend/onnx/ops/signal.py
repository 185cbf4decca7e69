"""Signals: Fourier transforms as products with tables of sines and cosines, and windows."""

import math
from collections.abc import Callable

import numpy as np

from ....ir import types
from ....ir.dim import Dim
from ....ir.graph import Value
from ...declined import Declined
from ...nn.pad import part
from ..operators import Call, known, onnx_op
from ..tensors import dtype_of_element

MAX_LENGTH = 8192  # of a transform, whose table has the square of it


def _table(length: int, bins: int, dtype: types.DType, *, inverse: bool) -> np.ndarray:
    """[2 * length, 2 * bins]: (re, im) of a signal, as one row, times it gives (re, im) of bins."""
    steps = np.outer(np.arange(length), np.arange(bins)) % max(length, 1)
    angle = 2 * np.pi * steps / max(length, 1) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    table = np.block([[cos, sin], [-sin, cos]]) / (length if inverse else 1)
    return table.astype(dtype.numpy)


def _real_table(length: int, bins: int, dtype: types.DType) -> np.ndarray:
    """[2 * bins, length]: (re, im) of half of the bins times it is the signal, which is real."""
    steps = np.outer(np.arange(bins), np.arange(length)) % max(length, 1)
    angle = 2 * np.pi * steps / max(length, 1)
    # the other half is the mirror of this one, but for the first bin and the middle one
    weight = np.full((bins, 1), 2.0)
    weight[0] = 1.0
    if length % 2 == 0:
        weight[length // 2 :] = 1.0
    table = np.concatenate([weight * np.cos(angle), -weight * np.sin(angle)]) / length
    return table.astype(dtype.numpy)


def transformed(
    call: Call, x: Value, length: Dim, *, inverse: bool = False, onesided: bool = False
) -> Value:
    """x [.., length, 1 or 2] of real or (re, im) numbers -> [.., bins, 2], or [.., length, 1].

    bins is the length, or length // 2 + 1 for one side of it; the inverse of one side is real.
    Sums of products in float32 (float64 for float64).
    """
    size = call.static(length, "the length of a transform")
    if not 0 < size <= MAX_LENGTH:
        raise Declined(f"a transform of {size} elements, of 1 to {MAX_LENGTH}")
    *kept, count, parts = x.shape
    half = size // 2 + 1
    is_real = inverse and onesided
    wanted = half if is_real else size
    rank = len(kept)
    missing = wanted - call.static(count, "the size of the axis")
    x = part(call.b, x, rank, 0, min(wanted, wanted - missing))
    x = call.b.pad(x, axis=rank, before=0, after=missing) if missing > 0 else x
    row = call.transpose(x, (*range(rank), rank + 1, rank))  # all real parts, then all others
    row = call.reshape(row, (*kept, parts * wanted))
    if is_real:
        table = _real_table(size, half, x.dtype)
    else:
        table = _table(size, half if onesided else size, x.dtype, inverse=inverse)
    y = _product(call, row, table[: parts * wanted])
    if is_real:
        return call.reshape(y, (*kept, size, 1))
    y = call.reshape(y, (*kept, 2, table.shape[1] // 2))
    return call.transpose(y, (*range(rank), rank + 1, rank))


def _product(call: Call, row: Value, table: np.ndarray) -> Value:
    """row [.., K] @ table [K, N]."""
    *kept, width = row.shape
    rows = row if kept else call.reshape(row, (1, width))
    y = call.b.matmul(rows, known(table))
    return y if kept else call.reshape(y, (table.shape[1],))


def _dft(
    call: Call, x: Value, length: Value | None, axis: int, inverse: bool, onesided: bool
) -> Value:
    axis = call.axis(axis, x)
    if axis == x.type.rank - 1:
        raise Declined("a transform along the axis of real and imaginary parts")
    size = x.shape[axis]
    if length is not None:
        (size,) = call.sizes(length)
    elif inverse and onesided:
        size = 2 * (size - 1)
    last = x.type.rank - 2
    order = [i for i in range(last + 1) if i != axis]
    turned = call.transpose(x, (*order, axis, last + 1))
    y = transformed(call, turned, size, inverse=inverse, onesided=onesided)
    back = [*range(axis), last, *range(axis, last), last + 1]
    return call.transpose(y, back)


@onnx_op("DFT", since=17)
def _dft_of_attribute(
    call: Call,
    x: Value,
    length: Value | None = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    return _dft(call, x, length, axis, inverse, onesided)


@onnx_op("DFT", since=20)
def _dft_of_operand(
    call: Call,
    x: Value,
    length: Value | None = None,
    axis: Value | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Value:
    (along,) = call.ints(axis) or (-2,)
    return _dft(call, x, length, along, inverse, onesided)


@onnx_op("STFT", since=17)
def _stft(
    call: Call,
    signal: Value,
    step: Value,
    window: Value | None = None,
    length: Value | None = None,
    *,
    onesided: bool = True,
) -> Value:
    b = call.b
    (hop,) = call.ints(step) or ()
    if length is not None:
        (size,) = call.ints(length) or ()
    else:
        size = call.static(signal.shape[1] if window is None else window.shape[0], "a frame")
    frames = b.window(signal, axis=1, size=size, step=hop)  # [B, frames, parts, size]
    frames = b.transpose(frames, perm=(0, 1, 3, 2))
    if window is not None:
        frames = b.mul(frames, call.reshape(call.cast(window, signal.dtype), (size, 1)))
    return transformed(call, frames, size, onesided=onesided)


# ---- windows ---------------------------------------------------------------------------------


def _window(*weights: float) -> Callable[..., Value]:
    """The sum of (-1)^k weights[k] cos(2 pi k n / N); N is the length, or one less."""

    def make(call: Call, size: Value, *, output_datatype: int = 1, periodic: bool = True) -> Value:
        b, dtype = call.b, dtype_of_element(output_datatype)
        (length,) = call.sizes(size)
        wide = types.f64 if dtype == types.f64 else types.f32
        span = b.dim_value(value=length if periodic else length - 1, dtype=wide)
        turn = b.div(call.number(2 * math.pi, wide), span)
        angle = b.mul(b.iota(length=length, dtype=wide), turn)
        total = call.number(weights[0], wide)
        for k, weight in enumerate(weights[1:], 1):
            wave = b.cos(b.mul(angle, call.number(k, wide)))
            total = b.add(total, b.mul(wave, call.number(weight * (-1) ** k, wide)))
        return call.cast(total, dtype)

    return make


onnx_op("HannWindow")(_window(0.5, 0.5))
onnx_op("HammingWindow")(_window(25 / 46, 21 / 46))
onnx_op("BlackmanWindow")(_window(0.42, 0.5, 0.08))


@onnx_op("MelWeightMatrix")
def _mel_weights(
    call: Call,
    bands: Value,
    length: Value,
    rate: Value,
    low: Value,
    high: Value,
    *,
    output_datatype: int = 1,
) -> Value:
    """Triangles, equally wide on the mel scale 2595 log10(1 + f / 700), over bins of frequency."""
    count, size, samples = (int(call.constant(v).item()) for v in (bands, length, rate))
    edges = [2595 * np.log10(1 + call.constant(v).item() / 700) for v in (low, high)]
    mels = edges[0] + np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2))
    bins = np.floor((size + 1) * (700 * (10 ** (mels / 2595) - 1)) / samples).astype(np.int64)
    table = np.zeros((size // 2 + 1, count))
    for i, (first, top, last) in enumerate(zip(bins, bins[1:], bins[2:])):
        table[first:top, i] = np.arange(top - first) / max(top - first, 1)
        table[top:last, i] = np.arange(last - top, 0, -1) / max(last - top, 1)
        table[top, i] = 1
    return known(table.astype(dtype_of_element(output_datatype).numpy))
