"""Floats that nothing computes in (float8 of the FNUZ kind, e8m0, float6, float4) as codes."""

import numpy as np
import pytest
from onnx import TensorProto

from tilewright.frontend.onnx.formats import E8M0, FORMATS
from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.ir.errors import UnsupportedModel

from ..onnx.graphs import model
from .onnx_single import check, ours, reference, single

F = TensorProto.FLOAT
RNG = np.random.default_rng(4)
NAMES = sorted(FORMATS)
SIGNED = [name for name in NAMES if FORMATS[name] != E8M0]


def values(dtype):
    """Each number of a format, the middles between them, what is next to those, and past them."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    every = np.unique(codes.view(dtype.numpy).astype(np.float32))
    every = every[np.isfinite(every)]
    middles = (every[1:] / 2 + every[:-1] / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    ends = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        return np.concatenate([every, middles, *near, every[[-1, 0]] * np.float32(1.3), ends])


def cast(name, x, **attributes):
    """The codes of x by our graph and by ONNX's reference."""
    to = TensorProto.DataType.Value(name)
    proto = single("Cast", [x], opset=25, to=to, **attributes)
    (got,) = ours(proto, {"x0": x})
    (want,) = reference(proto, {"x0": x})
    return got, want


def assert_same_codes(got, want):
    assert got.dtype == np.uint8
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want.view(np.uint8))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", SIGNED)
def test_every_number_rounds_to_the_nearest_code(name, saturate):
    x = values(FORMATS[name])
    if FORMATS[name].bits < 8:
        x = x[np.isfinite(x)]  # they have none for others
    assert_same_codes(*cast(name, x, saturate=saturate))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_are_rounded_as_the_model_says(mode, saturate):
    x = values(E8M0)
    x = np.abs(x[(np.abs(x) >= np.float32(2.0**-126)) | ~np.isfinite(x)])
    got, want = cast("FLOAT8E8M0", x, round_mode=mode, saturate=saturate)
    assert_same_codes(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_every_code_is_read_from_inputs_and_from_weights(name):
    dtype = FORMATS[name]
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).reshape(2, -1)
    kind = TensorProto.DataType.Value(name)
    for stored in ((), (0,)):
        proto = single("Cast", [codes], opset=25, to=TensorProto.FLOAT16, stored=stored)
        given = {} if stored else {"x0": codes.view(np.uint8)}
        (got,) = ours(proto, given)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got, codes.astype(np.float32).astype(np.float16))
    moved = model(
        [("Transpose", ["x"], ["t"]), ("Cast", ["t"], ["y"], {"to": F})],
        [("x", kind, codes.shape)],
        [("y", F)],
    )
    (got,) = ours(moved, {"x": codes.view(np.uint8)})
    np.testing.assert_array_equal(got, codes.T.astype(np.float32))


def test_blocks_of_scales_and_float4():
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    scale = RNG.uniform(0.3, 1, (4, 2)).astype(np.float32)
    zero = np.zeros((4, 2)).astype(FORMATS["FLOAT4E2M1"].numpy)
    options = {"opset": 23, "axis": 1, "block_size": 3}
    proto = single("QuantizeLinear", [x, scale, zero], stored=(2,), **options)
    (codes,) = ours(proto, {"x0": x, "x1": scale})
    (want,) = reference(proto, {"x0": x, "x1": scale})
    assert_same_codes(codes, want)
    check(reference, "DequantizeLinear", [want, scale, zero], stored=(0, 2), **options)


def test_arithmetic_in_such_a_format_is_refused():
    kind = TensorProto.FLOAT8E4M3FNUZ
    proto = model([("Max", ["x", "x"], ["y"])], [("x", kind, [2])], [("y", kind)])
    with pytest.raises(UnsupportedModel, match="maximum computes in f8e4m3fnuz"):
        import_onnx(proto)
