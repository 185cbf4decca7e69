"""Operators of com.microsoft vs onnxruntime, which defines them."""

from functools import partial

import numpy as np
import pytest

from tilewright.ir.errors import UnsupportedOp

from .onnx_single import arrays_of, check, ours, runtime, single

RNG = np.random.default_rng(11)
same = partial(check, runtime, domain="com.microsoft")


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu", "QuickGelu", "Gelu"])
def test_activations(op):
    x = floats(2, 3, 8)
    same(op, [x, floats(8)] if op in ("BiasGelu", "FastGelu") else [x])


def test_normalizations_of_sums():
    x, skip, scale, shift, bias = floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)
    for given in ([x, skip, scale, shift, bias], [x, skip, scale, shift], [x, skip, scale]):
        proto = single("SkipLayerNormalization", given, 4, domain="com.microsoft", epsilon=1e-5)
        proto.graph.node[0].output[1:3] = ["", ""]
        del proto.graph.output[1:3]
        arrays = arrays_of(proto, given)
        for got, want in zip(ours(proto, arrays), runtime(proto, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    same("SkipSimplifiedLayerNormalization", [x, skip, scale, bias])
    check(runtime, "SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("width", [64, 48])
def test_products_with_packed_weights(bits, width):
    block, columns = 32, 6
    groups = -(-width // block)
    x, scales = floats(2, 3, width), np.abs(floats(columns, groups)) / 16
    packed = RNG.integers(0, 256, (columns, groups, block * bits // 8)).astype(np.uint8)
    zeros = RNG.integers(0, 256, (columns, -(-groups * bits // 8))).astype(np.uint8)
    options = {"K": width, "N": columns, "bits": bits, "block_size": block, "rtol": 1e-4}
    for given in ([x, packed, scales.reshape(-1)], [x, packed, scales, zeros]):
        stored = range(1, len(given))
        same("MatMulNBits", given, stored=stored, atol=1e-3, **options)


def heads(*shape):
    return floats(*shape) / 2


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(past, unidirectional):
    batch, length, count, size = 2, 4, 3, 8
    q, k, v = (heads(batch, length, count * size) for _ in range(3))
    inputs = [q, k, v, floats(3 * count * size) / 4, None, None]
    if past:
        inputs += [heads(batch, count, past, size), heads(batch, count, past, size)]
    options = {"num_heads": count, "unidirectional": unidirectional}
    same("MultiHeadAttention", inputs, 3 if past else 1, **options)
    if not past:
        mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
        same("MultiHeadAttention", [*inputs[:4], mask], **options, atol=1e-3)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_its_projections(unidirectional):
    x, weights, bias = heads(2, 4, 12), floats(12, 36) / 4, floats(36) / 4
    options = {"num_heads": 3, "unidirectional": unidirectional}
    same("Attention", [x, weights, bias], **options)
    same("Attention", [x, weights, bias, np.array([4, 2], np.int32)], **options, atol=1e-3)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("lengths", [(2, 3, 0, [3, 2]), (1, 3, 5, [8]), (2, 1, 5, [6, 4])])
def test_grouped_query_attention(rotary, lengths):
    batch, new, past, total = lengths
    count, groups, size = 4, 2, 16
    q, k, v = (heads(batch, new, n * size) for n in (count, groups, groups))
    kept = [heads(batch, groups, past, size) for _ in range(2)]
    inputs = [q, k, v, *kept, np.int32(total) - 1, np.array(max(total), np.int32)]
    options = {"num_heads": count, "kv_num_heads": groups, "do_rotary": rotary}
    if rotary:
        angles = np.outer(np.arange(32), 1 / 10 ** np.arange(size // 2)).astype(np.float32)
        inputs += [np.cos(angles), np.sin(angles)]
    for window in (-1, 2):
        proto = single(
            *("GroupQueryAttention", inputs, 3),
            domain="com.microsoft",
            local_window_size=window,
            **options,
        )
        arrays = arrays_of(proto, inputs)
        for got, want in zip(ours(proto, arrays), runtime(proto, arrays), strict=True):
            # what lies past the end of a sequence is nobody's
            rows = [slice(None, n) for n in total] if got.ndim == 4 else [slice(None)] * batch
            if new > 1 and got.ndim == 3:
                rows = [slice(None, n) for n in total] if not past else rows
            for one, other, row in zip(got, want, rows):
                one, other = (v[:, row] if v.ndim == 3 else v[row] for v in (one, other))
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_rotary_positions():
    x, cos, sin = floats(2, 3, 32), floats(9, 4), floats(9, 4)
    options = {"num_heads": 4, "atol": 1e-5}
    for positions in (np.array([2]), np.array([[0, 1, 2], [4, 5, 6]])):
        for interleaved in (0, 1):
            inputs = [x, positions, cos, sin]
            same("RotaryEmbedding", inputs, interleaved=interleaved, **options)


def codes(dtype, *shape):
    ends = np.iinfo(dtype)
    return RNG.integers(ends.min, ends.max + 1, shape).astype(dtype)


def test_quantized_operators():
    x, y = codes(np.uint8, 2, 3, 4), codes(np.uint8, 3, 4)
    of_x, of_y = [np.float32(0.02), np.uint8(100)], [np.float32(0.03), np.uint8(128)]
    result = [np.float32(0.05), np.uint8(90)]
    for op in ("QLinearAdd", "QLinearMul"):
        same(op, [x, *of_x, y, *of_y, *result], atol=1)
    for op in ("QLinearSigmoid", "QLinearLeakyRelu"):
        same(op, [x, *of_x, *result], stored=(1, 2, 3, 4), atol=1)
    same("QLinearConcat", [*result, x, *of_x, x, *of_y], axis=1, stored=(0, 1, 3, 4, 6, 7), atol=1)
    same("QLinearGlobalAveragePool", [codes(np.uint8, 1, 3, 4, 4), *of_x, *result], atol=1)
    left, w, scale = floats(2, 6), codes(np.int8, 6, 5), np.abs(floats(5)) / 100
    same("DynamicQuantizeMatMul", [left, w, scale, None, floats(5)], stored=(1, 2, 4), rtol=1e-4)
    sums = [codes(np.uint8, 2, 6), w, np.float32(0.1), scale, np.uint8(7)]
    same("MatMulIntegerToFloat", sums, rtol=1e-4)


def test_a_recurrent_layer_with_codes_for_weights():
    time, batch, inputs, hidden = 4, 2, 6, 3
    x, w, r = (
        floats(time, batch, inputs),
        codes(np.int8, 1, inputs, 12),
        codes(np.int8, 1, hidden, 12),
    )
    of_w, of_r = np.float32([0.005]), np.float32([0.006])
    zero = np.zeros(1, np.int8)
    given = [x, w, r, floats(1, 24), None, None, None, None, of_w, zero, of_r, zero]
    options = {"hidden_size": hidden, "stored": (1, 2, 8, 9, 10, 11)}
    # onnxruntime rounds what the weights meet to 8 bits, which ours does not
    same("DynamicQuantizeLSTM", given, 3, atol=0.03, **options)


def test_what_is_left_out_is_told():
    proto = single("GroupQueryAttention", [floats(1, 1, 8)] * 6, domain="com.microsoft",
                   num_heads=1, kv_num_heads=1, smooth_softmax=1)  # fmt: skip
    with pytest.raises(UnsupportedOp, match=r"GroupQueryAttention(.|\n)*sinks"):
        ours(proto, arrays_of(proto, [floats(1, 1, 8)] * 6))
