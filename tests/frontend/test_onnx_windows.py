"""What ONNX puts back from windows vs onnxruntime, and operators that are refused with a reason."""

import numpy as np
import pytest
from onnx import TensorProto

from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.ir.errors import ShapeError, UnsupportedOp

from .onnx_single import check, reference, runtime, single

RNG = np.random.default_rng(6)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    "window", [{}, {"strides": [2, 1]}, {"dilations": [1, 2], "pads": [1, 0, 2, 1]}]
)
def test_blocks_are_added_where_they_were_cut_out(window):
    image, block = np.array([6, 7]), np.array([2, 3])
    pads, ones = window.get("pads", [0] * 4), [1, 1]
    counts = [
        (image[i] + pads[i] + pads[2 + i] - window.get("dilations", ones)[i] * (block[i] - 1) - 1)
        // window.get("strides", ones)[i]
        + 1
        for i in range(2)
    ]
    x = floats(2, 3 * 6, int(np.prod(counts)))
    check(reference, "Col2Im", [x, image, block], stored=(1, 2), **window)


@pytest.mark.parametrize(
    ("op", "inputs", "window", "problem"),
    [
        (
            "Conv",
            2,
            {"kernel_shape": [2, 2]},
            r"kernel_shape is \(2, 2\), the kernel f32",
        ),
        ("Conv", 2, {"strides": [0, 1]}, r"windows of \(3, 2\), \(0, 1\) apart"),
        ("MaxPool", 1, {"kernel_shape": [2]}, r"windows of \(2,\) over f32\[1, 2, 5, 6\]"),
        ("LpPool", 1, {"kernel_shape": [2, 2], "p": 0}, "the norm of p = 0"),
    ],
)
def test_windows_that_do_not_fit_are_told(op, inputs, window, problem):
    arrays = [floats(1, 2, 5, 6), floats(2, 2, 3, 2)][:inputs]
    with pytest.raises(ShapeError, match=problem):
        import_onnx(single(op, arrays, **window))


@pytest.mark.parametrize("groups", [{}, {"group": 2, "offset_group": 2}, {"offset_group": 4}])
def test_windows_whose_elements_are_moved(groups):
    window = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 1, 1]}
    count = groups.get("offset_group", 1)
    x, w = floats(1, 4, 5, 6), floats(2, 4 // groups.get("group", 1), 3, 2)
    offset, mask = floats(1, count * 12, 3, 5) * 2, floats(1, count * 6, 3, 5)
    for more in ([], [floats(2), mask]):
        check(reference, "DeformConv", [x, w, offset, *more], opset=19, **window, **groups)


@pytest.mark.parametrize("shape", [None, (1, 2, 7, 9)])
def test_pooling_undone(shape):
    x, places = floats(1, 2, 3, 4), np.arange(48)[::2].reshape(1, 2, 3, 4)
    inputs = [x, places] if shape is None else [x, places, np.array(shape)]
    # of a shape that is given, onnxruntime takes places to count in that
    theirs, stored = (reference, (2,)) if shape else (runtime, ())
    check(theirs, "MaxUnpool", inputs, kernel_shape=[2, 2], strides=[2, 2], stored=stored)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
def test_counts_of_n_grams(mode, skips):
    pool = {
        "ngram_counts": [0, 3],
        "ngram_indexes": [0, 2, 1, 4, 3],
        "pool_int64s": [1, 2, 3, 1, 1, 2, 3],
        "weights": [1.0, 2.0, 0.5, 3.0, 4.0],
    }
    lengths = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": skips}
    for shape in ((9,), (2, 9)):
        x = RNG.integers(1, 4, shape).astype(np.int32)
        check(runtime, "TfIdfVectorizer", [x], mode=mode, **pool, **lengths)


@pytest.mark.parametrize(
    ("op", "domain", "reason"),
    [
        ("RandomUniformLike", "", "draws random numbers"),
        ("ImageDecoder", "", "decodes a picture"),
        ("Adagrad", "ai.onnx.preview.training", "export the model for inference"),
    ],
)
def test_what_is_refused_says_why(op, domain, reason):
    with pytest.raises(UnsupportedOp, match=rf"{op}(.|\n)*{reason}"):
        import_onnx(single(op, [floats(3)] * 5, domain=domain, opset=22))


def test_bits_read_as_another_type_and_determinants():
    check(reference, "BitCast", [floats(2, 3)], to=TensorProto.INT32, opset=26)
    check(reference, "BitCast", [np.array([-1, 7], np.int16)], to=TensorProto.UINT16, opset=26)
    check(reference, "Det", [floats(2, 3, 3)], rtol=1e-4)
    with pytest.raises(UnsupportedOp, match=r"BitCast(.|\n)*the bits of f32 as f64"):
        import_onnx(single("BitCast", [floats(3)], to=TensorProto.DOUBLE, opset=26))
