"""What is put back from windows: pooling and unfolding, undone."""

from collections.abc import Sequence

import numpy as np

from ....ir import types
from ....ir.dim import Dim, product
from ....ir.graph import Value
from ..operators import Call, known, onnx_op


def _pads(pads: Sequence[int] | None, count: int) -> Sequence[int]:
    return pads or (0,) * (2 * count)


@onnx_op("MaxUnpool")
def _max_unpool(
    call: Call,
    x: Value,
    places: Value,
    shape: Value | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """Zeros, with the elements of x at their places in the smallest picture that was pooled.

    Places count in that picture; a larger one is asked for by its shape.
    """
    b, count = call.b, len(kernel_shape)
    steps, around = strides or (1,) * count, _pads(pads, count)
    small: list[Dim] = [*x.shape[:2]]
    for i, size in enumerate(x.shape[2:]):
        small.append((size - 1) * steps[i] + kernel_shape[i] - around[i] - around[count + i])
    wanted = tuple(small) if shape is None else call.sizes(shape)
    flat = b.full(value=0, shape=(product(wanted),), dtype=x.dtype)
    number = x.type.numel
    index = call.reshape(_moved(call, places, small, wanted), (number,))
    filled = b.scatter(flat, index, call.reshape(x, (number,)))
    return call.reshape(filled, wanted)


def _moved(call: Call, places: Value, small: Sequence[Dim], large: Sequence[Dim]) -> Value:
    """Places in a small box, counted in row-major order, as places in a large one."""
    if tuple(small) == tuple(large):
        return places
    b = call.b
    total = call.number(0, places.dtype)
    for i in range(len(small)):
        after, size = product(small[i + 1 :]), small[i]
        at = b.floordiv(places, b.dim_value(value=after, dtype=places.dtype))
        at = b.mod(at, b.dim_value(value=size, dtype=places.dtype))
        step = b.dim_value(value=product(large[i + 1 :]), dtype=places.dtype)
        total = b.add(total, b.mul(at, step))
    return total


@onnx_op("Col2Im")
def _col2im(
    call: Call,
    x: Value,
    image_shape: Value,
    block_shape: Value,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:
    """x [N, C * the size of a block, number of blocks]: each block added where it was cut out."""
    image, block = call.ints(image_shape) or (), call.ints(block_shape) or ()
    count = len(image)
    ones = (1,) * count
    apart, steps, around = dilations or ones, strides or ones, _pads(pads, count)
    padded = [n + around[i] + around[count + i] for i, n in enumerate(image)]
    place = np.zeros((1,) * (2 * count), np.int64)
    for i in range(count):  # of each element of a block, and each block, in the padded picture
        blocks = (padded[i] - apart[i] * (block[i] - 1) - 1) // steps[i] + 1
        at = np.arange(block[i])[:, None] * apart[i] + np.arange(blocks) * steps[i]
        along = [1] * (2 * count)
        along[i], along[count + i] = at.shape
        place = place * padded[i] + at.reshape(along)
    b, (batch, _, _) = call.b, x.shape
    channels = call.static(x.shape[1], "the number of rows") // int(np.prod(block))
    rows = call.reshape(x, (batch, channels, place.size))
    zeros = b.full(value=0, shape=(batch, channels, int(np.prod(padded))), dtype=x.dtype)
    summed = b.scatter(zeros, known(place.reshape(-1)), rows, axis=2, combine="add")
    y = call.reshape(summed, (batch, channels, *padded))
    for i, size in enumerate(image):
        y = b.slice(y, axis=2 + i, start=around[i], stop=around[i] + size)
    return y


@onnx_op("TfIdfVectorizer")
def _ngrams(
    call: Call,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Value:
    """How often each n-gram of the pool is in x [.., C], at any number of skips up to the largest.

    TFIDF multiplies with its weight; IDF takes one for each number above 1 before.
    """
    b, length = call.b, call.static(x.shape[-1], "the number of tokens")
    width = max(ngram_indexes, default=-1) + 1
    kept = x.shape[:-1]
    x = call.cast(x, types.i64)
    total = b.full(value=0.0, shape=(*kept, width), dtype=types.f32)
    ends = [*ngram_counts[1:], len(pool_int64s)]
    number = 0
    for n, (start, end) in enumerate(zip(ngram_counts, ends), 1):
        grams = np.array(pool_int64s[start:end], np.int64).reshape(-1, n)
        columns = np.array(ngram_indexes[number : number + len(grams)], np.int64)
        number += len(grams)
        if not len(grams) or not min_gram_length <= n <= max_gram_length:
            continue
        for skip in range(max_skip_count + 1 if n > 1 else 1):
            if (n - 1) * (skip + 1) >= length:
                break
            found = b.window(x, axis=-1, size=n, dilation=skip + 1)
            found = call.reshape(found, (*found.shape[:-1], 1, n))
            is_same = b.all(b.eq(found, known(grams)), axes=(-1,))
            counts = b.sum(call.cast(is_same, types.f32), axes=(-2,))
            total = b.scatter(total, known(columns), counts, axis=len(kept), combine="add")
    if mode == "IDF":
        total = b.minimum(total, call.number(1.0, types.f32))
    if mode == "TF" or weights is None:
        return total
    factors = np.ones(width, np.float32)
    factors[list(ngram_indexes)] = weights
    return b.mul(total, known(factors))
