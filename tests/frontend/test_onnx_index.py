"""Reductions, indexing and signals of ONNX vs ONNX's reference and onnxruntime."""

import numpy as np
import pytest

import tilewright

from .onnx_single import check, reference, runtime, single

RNG = np.random.default_rng(5)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


REDUCTIONS = "Sum Mean Prod Max Min L1 L2 SumSquare LogSum LogSumExp".split()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_floats_integers_and_nothing(name):
    op = f"Reduce{name}"
    x = np.abs(floats(3, 1, 4)) + 0.1
    check(runtime, op, [x, np.array([-1, 0])], keepdims=0)
    check(runtime, op, [x])
    check(runtime, op, [x, np.array([], np.int64)], noop_with_empty_axes=1, stored=(1,))
    check(runtime, op, [x], axes=[1], opset=11)
    if name != "Mean":  # of nothing it is NaN
        check(reference, op, [np.zeros((2, 0, 3), np.float32), np.array([1])])
    if not name.startswith("Log"):
        integers = RNG.integers(1, 9, (3, 4)).astype(np.int32)
        check(runtime, op, [integers, np.array([1])], stored=(1,))


def test_the_last_of_equal_extremes_and_softmax_before_opset_13():
    x = np.float32([[1, 3, 3], [2, 2, 0]])
    for op in ("ArgMax", "ArgMin"):
        check(runtime, op, [x], axis=1, select_last_index=1)
        check(runtime, op, [x], axis=-1, keepdims=0)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for opset in (11, 13):
            check(runtime, op, [floats(2, 3, 4)], axis=1, opset=opset)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_running_sums(reverse, exclusive):
    inputs = [floats(3, 4), np.array(-1)]
    check(runtime, "CumSum", inputs, reverse=reverse, exclusive=exclusive, stored=(1,))


@pytest.mark.parametrize(
    ("batch", "shape"), [(0, (5, 2)), (0, (2, 3, 1)), (1, (2, 4, 1)), (2, (2, 3, 1))]
)
def test_tuples_of_indices(batch, shape):
    x = floats(2, 3, 4)
    index = RNG.integers(-2, 2, shape)
    check(runtime, "GatherND", [x, index], batch_dims=batch)
    if not batch:
        updates = floats(*shape[:-1], *x.shape[shape[-1] :])
        # places may be named twice: every way to combine but to replace is defined then
        for reduction in ("add", "mul", "max", "min"):
            check(reference, "ScatterND", [x, index, updates], reduction=reduction)


def test_elements_along_an_axis():
    x, index = floats(3, 4), np.array([[0, -1, 2], [-3, 1, 1]])
    check(runtime, "GatherElements", [x, index], axis=1)
    for reduction in ("add", "max"):
        inputs = [x, index, floats(2, 3)]
        check(runtime, "ScatterElements", inputs, axis=1, reduction=reduction)
    check(runtime, "Gather", [x, np.array([[-1, 0]])], axis=1)


def test_one_hot_takes_places_from_the_end_and_leaves_others_off():
    index, values = np.array([[0, 2, -1], [7, -9, 1]]), np.float32([-1, 5])
    for axis in (-1, 0, 1):
        check(runtime, "OneHot", [index, np.array(4), values], axis=axis, stored=(1,))


@pytest.mark.parametrize(("time", "batch"), [(0, 1), (1, 0)])
def test_sequences_turned_by_their_lengths(time, batch):
    x, lengths = floats(4, 4, 2), np.array([1, 4, 2, 3])
    check(runtime, "ReverseSequence", [x, lengths], time_axis=time, batch_axis=batch)


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(is_sorted, axis):
    x = np.float32([[2, 1, 1, 3], [2, 0, 0, 3], [2, 1, 1, 3]])
    options = {"sorted": is_sorted} if axis is None else {"sorted": is_sorted, "axis": axis}
    check(runtime, "Unique", [x], 4, **options)


def test_what_data_says_how_many_there_are():
    x = np.float32([[0, 2, 0], [1, 0, 3]])
    check(runtime, "NonZero", [x])
    for axis in (None, 0, 1):
        options = {} if axis is None else {"axis": axis}
        check(runtime, "Compress", [x, np.array([False, True])], **options)
    check(runtime, "TopK", [x, np.array([2])], 2, axis=-1, largest=0, stored=(1,))


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32])
def test_unsigned_numbers_are_in_order_up_to_the_largest(dtype):
    top = np.iinfo(dtype).max
    x = np.array([[5, top, 0, top // 2, top - 1, top // 2 + 1]], dtype)
    for largest in (0, 1):
        inputs = [x, np.array([6])]
        model = single("TopK", inputs, 2, axis=-1, largest=largest, stored=(1,))
        with tilewright.compile(model, target="cpu") as compiled:
            values, places = compiled(x)
        wanted = np.argsort(x, axis=1)
        wanted = wanted[:, ::-1] if largest else wanted
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("numbers", [(3, 0.5, 0.2), (50, 0.1, -9.0), (2, 0.9, 0.95)])
def test_boxes_that_overlap_are_dropped(center, numbers):
    limit, overlap, least = numbers
    corner, size = RNG.uniform(0, 1, (2, 12, 2)), RNG.uniform(0.2, 0.6, (2, 12, 2))
    boxes = np.concatenate([corner, size if center else corner + size], 2).astype(np.float32)
    scores = RNG.uniform(size=(2, 3, 12)).astype(np.float32)
    numbers = [np.array([limit]), np.float32([overlap]), np.float32([least])]
    check(runtime, "NonMaxSuppression", [boxes, scores, *numbers], center_point_box=center)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("pixel", ["half_pixel", "output_half_pixel"])
def test_what_is_in_boxes(mode, pixel):
    corner, size = RNG.uniform(-3, 7, (5, 2)), RNG.uniform(0.1, 9, (5, 2))
    boxes = np.concatenate([corner, corner + size], 1).astype(np.float32)
    inputs = [floats(2, 3, 6, 8), boxes, np.array([0, 1, 1, 0, 1])]
    options = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.8}
    options |= {"coordinate_transformation_mode": pixel, "mode": mode}
    check(reference, "RoiAlign", inputs, **options)


@pytest.mark.parametrize("length", [1, 2, 7, 12])
@pytest.mark.parametrize("onesided", [0, 1])
def test_fourier_transforms(length, onesided):
    x = floats(2, 9, 3, 1)
    inputs = [x, np.array(length), np.array(1)]
    options = {"opset": 20, "stored": (1, 2), "onesided": onesided}
    (y,) = check(reference, "DFT", inputs, **options)
    if not onesided or length > 1:
        check(reference, "DFT", [y, np.array(length), np.array(1)], inverse=1, **options)
    if not onesided:
        check(reference, "DFT", [floats(4, 5, 2), None, np.array(-2)], opset=20)


def test_transforms_of_frames_and_windows():
    inputs = [floats(2, 50, 1), np.array(6), np.hanning(16).astype(np.float32), np.array(16)]
    check(reference, "STFT", inputs, stored=(1, 3))
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            check(runtime, op, [np.array(9)], periodic=periodic, stored=(0,))
    mel = [np.array(8), np.array(64), np.array(8000), np.float32(0), np.float32(4000)]
    check(runtime, "MelWeightMatrix", mel, stored=range(5))
