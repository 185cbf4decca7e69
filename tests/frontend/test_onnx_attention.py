"""Attention, rotary positions, recurrences and normalizations of ONNX vs ONNX's reference."""

from functools import partial

import numpy as np
import pytest

from .onnx_single import check, reference

RNG = np.random.default_rng(8)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


attention = partial(check, reference, "Attention", opset=25)


def parts(queries=3, keys=3, count=4, groups=2, size=8, values=6):
    """q, k and v of 2 sequences."""
    return [floats(2, count, queries, size), *(floats(2, groups, keys, s) for s in (size, values))]


@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"softcap": 2.0, "scale": 0.3}])
@pytest.mark.parametrize("keys", [3, 7])
def test_queries_are_aligned_with_the_first_keys_without_a_past(options, keys):
    attention(parts(keys=keys), **options)


@pytest.mark.parametrize("left", [-1, 0, 2])
@pytest.mark.parametrize("right", [-1, 1])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_windows_before_and_after_a_query(left, right, is_causal):
    windows = {"left_window_size": left, "right_window_size": right, "is_causal": is_causal}
    attention(parts(5, 5), **windows)
    past = [floats(2, 2, 4, 8), floats(2, 2, 4, 6)]
    attention([*parts(5, 5), None, *past], 3, **windows)


@pytest.mark.parametrize("mode", range(4))
def test_masks_and_what_the_scores_are_on_the_way(mode):
    for mask in (RNG.random((3, 5)) > 0.4, floats(4, 3, 5), floats(2, 1, 3, 4)):
        inputs = [*parts(3, 2), mask, floats(2, 2, 3, 8), floats(2, 2, 3, 6)]
        cap = 3.0 if mode else 0.0  # of what is not capped yet the reference gives it capped
        attention(inputs, 4, qk_matmul_output_mode=mode, is_causal=1, softcap=cap)


def test_a_cache_with_room_and_a_row_that_sees_nothing():
    inputs = [*parts(2, 6), None, None, None, np.array([5, 1])]
    attention(inputs, is_causal=1)
    attention(inputs)
    y, *_ = attention(inputs, is_causal=1, left_window_size=1)
    assert not y[1, :, 0].any()


def test_heads_side_by_side():
    inputs = [floats(2, 3, 32), floats(2, 5, 16), floats(2, 5, 12)]
    attention(inputs, q_num_heads=4, kv_num_heads=2, is_causal=1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
def test_rotary_positions(interleaved, width):
    half = (width or 8) // 2
    options = {"interleaved": interleaved, "rotary_embedding_dim": width, "opset": 23}
    tables = floats(10, half), floats(10, half)
    positions = np.array([[0, 3, 9], [1, 1, 2]])
    check(reference, "RotaryEmbedding", [floats(2, 4, 3, 8), *tables, positions], **options)
    tables = floats(2, 3, half), floats(2, 3, half)
    check(reference, "RotaryEmbedding", [floats(2, 3, 32), *tables], num_heads=4, **options)


RULES = {"linear": (), "gated": (0,), "delta": (1,), "gated_delta": (0, 1)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("time", [1, 4])
def test_linear_attention(rule, time):
    q, k, v = floats(2, time, 4 * 3), floats(2, time, 2 * 3), floats(2, time, 2 * 5)
    options = {"update_rule": rule, "q_num_heads": 4, "kv_num_heads": 2, "opset": 27}
    for width, state in ((2, None), (6, floats(2, 2, 3, 5))):
        others = [-np.abs(floats(2, time, width)), np.abs(floats(2, time, 2))]
        given = [x if i in RULES[rule] else None for i, x in enumerate(others)]
        check(reference, "LinearAttention", [q, k, v, state, *given], 2, rtol=1e-4, **options)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_convolution_over_what_came_before(length, activation):
    x, weight, options = floats(2, 4, length), floats(4, 1, 3), {"activation": activation}
    for state in (None, floats(2, 4, 2)):
        inputs = [x, weight, floats(4), state]
        check(reference, "CausalConvWithState", inputs, 2, opset=27, **options)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalizations_over_some_axes(axis):
    x = floats(2, 3, 4)
    shape = x.shape[axis:]
    check(reference, "LayerNormalization", [x, floats(*shape), floats(*shape)], 3, axis=axis)
    check(reference, "RMSNormalization", [x, floats(*shape)], axis=axis, opset=23)
    check(reference, "LayerNormalization", [x, floats(4)], axis=axis)


@pytest.mark.parametrize("opset", [18, 21])
def test_groups_with_weights_of_their_own_or_of_channels(opset):
    count = 2 if opset == 18 else 6
    x, scale, bias = floats(2, 6, 3, 2), floats(count), floats(count)
    options = {"num_groups": 2, "opset": opset, "epsilon": 0.1}
    check(reference, "GroupNormalization", [x, scale, bias], **options)


def test_writing_into_a_cache():
    cache, update = floats(2, 3, 6, 2), floats(2, 3, 2, 2)
    write = partial(check, reference, "TensorScatter", opset=24)
    write([cache, update])
    write([cache, update, np.array([1, 4])])
    write([cache, update, np.array([5, 3])], mode="circular")
