"""Quantized operators of ONNX vs onnxruntime and ONNX's reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

import tilewright

from .onnx_single import check, info, reference, runtime, single

RNG = np.random.default_rng(3)


def floats(*shape):
    return (RNG.normal(size=shape) * 20).astype(np.float32)


def codes(dtype, *shape):
    ends = np.iinfo(dtype)
    return RNG.integers(ends.min, ends.max + 1, shape).astype(dtype)


SCALE = np.float32(0.25)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantize_rounds_to_even_and_saturates(dtype):
    x = np.float32([-1000, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1000, 0.1, -0.0]) * SCALE
    (y,) = check(runtime, "QuantizeLinear", [x, SCALE, dtype(3)])
    assert y.tolist()[1:7] == [max(v, np.iinfo(dtype).min) for v in (1, 1, 3, 3, 5, 5)]


def test_by_axis_and_by_blocks():
    x, scale = floats(3, 4, 2), np.float32([0.1, 0.2, 0.3, 0.4])
    zero = np.int8([0, 5, -3, 9])
    (y,) = check(runtime, "QuantizeLinear", [x, scale, zero], axis=1)
    check(runtime, "DequantizeLinear", [y, scale, zero], axis=1, rtol=1e-6)
    check(runtime, "DequantizeLinear", [y, scale, zero], axis=-2, stored=(0, 1, 2), rtol=1e-6)
    scale = np.abs(floats(3, 2, 2)) / 50 + 0.1
    zero = codes(np.uint8, 3, 2, 2)
    options = {"axis": 1, "block_size": 2, "opset": 21}
    (y,) = check(reference, "QuantizeLinear", [x, scale, zero], **options)
    check(runtime, "DequantizeLinear", [y, scale, zero], **options)
    check(reference, "DequantizeLinear", [y, scale, zero], stored=(0, 1, 2), **options)


def test_a_last_block_may_be_short():
    x, scale = floats(2, 5), np.float32([[0.5, 1.0, 2.0], [0.25, 0.5, 3.0]])
    zero = codes(np.int8, 2, 3)
    options = {"axis": 1, "block_size": 2, "opset": 21}
    (y,) = check(reference, "QuantizeLinear", [x, scale, zero], **options)
    check(reference, "DequantizeLinear", [y, scale, zero], stored=(0, 1, 2), **options)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_codes_that_share_bytes(dtype):
    low, high = (-8, 8) if dtype is ml_dtypes.int4 else (0, 16)
    x = RNG.integers(low, high, (3, 6)).astype(dtype)
    scale, zero = np.float32([0.5, 0.25, 2.0]), np.array([1, 2, 3]).astype(dtype)
    check(reference, "DequantizeLinear", [x, scale, zero], axis=0, opset=21)
    check(reference, "DequantizeLinear", [x, scale, zero], axis=0, opset=21, stored=(0, 1, 2))
    check(reference, "QuantizeLinear", [floats(3, 6) / 8, scale, zero], axis=0, opset=21)


def test_codes_that_share_bytes_go_in_and_out_of_a_compiled_model():
    x, scale, zero = floats(2, 7), np.array(0.9, np.float32), np.array(-2).astype(ml_dtypes.int4)
    quantized = single("QuantizeLinear", [x, scale, zero], opset=21)
    quantized.graph.output[0].CopyFrom(info("y0", TensorProto.INT4, [2, 7]))
    codes = tilewright.compile(quantized, target="cpu")(x, scale, zero)[0]
    assert codes.dtype == ml_dtypes.int4
    assert codes.tolist() == reference(quantized, {"x0": x, "x1": scale, "x2": zero})[0].tolist()
    back = single("DequantizeLinear", [codes, scale, zero], opset=21)
    found = tilewright.compile(back, target="cpu")(codes, scale, zero)[0]
    np.testing.assert_allclose(found, (codes.astype(np.float32) + 2) * scale)


@pytest.mark.parametrize("shape", [(3, 4), (1,), (2, 1, 5)])
def test_dynamic_quantization(shape):
    for x in (floats(*shape), np.zeros(shape, np.float32), np.abs(floats(*shape)) + 1):
        check(runtime, "DynamicQuantizeLinear", [x], 3)


@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.int8), (np.int8, np.int8)])
def test_integer_products(left, right):
    x, w = codes(left, 2, 3, 7), codes(right, 7, 5)
    check(runtime, "MatMulInteger", [x, w])
    check(runtime, "MatMulInteger", [x, w, left(4), right(5)])
    check(runtime, "MatMulInteger", [x, w, left(4), codes(right, 5)])
    for zero in (right(0), right(5), codes(right, 5)):
        check(runtime, "MatMulInteger", [x, w, left(4), zero], stored=(1, 3))
    scales = np.float32(0.02), np.float32(0.03), np.float32(2.0)
    inputs = [x, scales[0], left(7), w, scales[1], right(3), scales[2], left(9)]
    check(runtime, "QLinearMatMul", inputs, atol=1)
    inputs[4:6] = np.abs(floats(5)) / 100 + 0.01, codes(right, 5)
    check(runtime, "QLinearMatMul", inputs, atol=1)


@pytest.mark.parametrize("rows", [1, 29, 77])
def test_integer_products_of_stored_panels(rows):
    """Rows and columns of several tiles, an odd number of products in each sum, extreme codes."""
    x, w = codes(np.uint8, rows, 301), codes(np.int8, 301, 70)
    x[0], w[:, 0], w[:, 69] = 255, -128, 127
    for zero in (np.int8(0), np.int8(-128), codes(np.int8, 70)):
        check(runtime, "MatMulInteger", [x, w, np.uint8(0), zero], stored=(1, 3))
    check(runtime, "MatMulInteger", [x, codes(np.int8, 301, 33)])
    signed = codes(np.int8, rows, 301)
    check(runtime, "MatMulInteger", [signed, w, np.int8(-7), np.int8(0)], stored=(1, 3))


@pytest.mark.parametrize("window", [{}, {"pads": [1, 0, 1, 2], "strides": [2, 1]}, {"group": 2}])
def test_integer_convolutions(window):
    groups = window.get("group", 1)
    x, w = codes(np.uint8, 2, 4, 6, 5), codes(np.int8, 6, 4 // groups, 3, 2)
    check(reference, "ConvInteger", [x, w, np.uint8(120)], **window)
    check(reference, "ConvInteger", [x, w, np.uint8(120), np.int8(3)], stored=(1, 3), **window)
    scales = np.abs(floats(6)) / 1000 + 0.001
    inputs = [x, np.float32(0.02), np.uint8(120), w, scales, np.zeros(6, np.int8), np.float32(0.5)]
    inputs += [np.uint8(100), codes(np.int8, 6).astype(np.int32) * 20]
    check(runtime, "QLinearConv", inputs, atol=1, stored=(3, 4, 5, 8), **window)
