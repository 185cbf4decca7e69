"""ONNX models compiled: how they are called, which programs they get, and what is refused."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright
from tilewright.ir.errors import DimError, OptionError, ShapeError, UnsupportedOp

from ..onnx.graphs import model

F, I64 = TensorProto.FLOAT, TensorProto.INT64

W = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
MODEL = model(
    [("MatMul", ["in:0", "w"], ["y"]), ("Relu", ["y"], ["z"])],
    [("in:0", F, ["batch", 3])],
    [("z", F), ("y", F)],
    {"w": W},
)
RESHAPE = model(
    [("Reshape", ["x", "to"], ["y"])], [("x", F, [2, 6]), ("to", I64, ["n"])], [("y", F)]
)
APART = model([("Add", ["x", "y"], ["z"])], [("x", F, ["n", 2]), ("y", F, ["m", 2])], [("z", F)])


@pytest.fixture(scope="module")
def compiled():
    with tilewright.compile(MODEL, target="cpu") as compiled:
        yield compiled


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    onnx.save(MODEL, path)
    return path


@pytest.mark.parametrize("rows", [1, 5])
def test_outputs_come_in_order_whatever_the_size(compiled, rows):
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    for z, y in (compiled(x), compiled(**{"in:0": x})):
        assert type(z) is np.ndarray
        np.testing.assert_allclose(y, x @ W, rtol=1e-5)
        np.testing.assert_array_equal(z, np.maximum(y, 0))
    assert len(compiled.variants) == 1


def test_tensors_give_tensors(compiled):
    torch = pytest.importorskip("torch")
    z, _ = compiled(torch.ones(2, 3))
    assert isinstance(z, torch.Tensor)


def test_wrong_arguments_are_named(compiled):
    with pytest.raises(ShapeError, match="the arguments are not the model's inputs"):
        compiled(x=np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError, match="f64, must be f32"):
        compiled(np.ones((2, 3)))
    with pytest.raises(DimError, match=r"'in:0' is \(2, 4\), declared \('batch', 3\)"):
        compiled(np.ones((2, 4), np.float32))


def test_numbers_that_decide_the_graph_get_a_program_each():
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    with tilewright.compile(RESHAPE, target="cpu") as compiled:
        for to in ([3, 4], [2, -1, 2], [3, 4]):
            (y,) = compiled(x, np.int64(to))
            np.testing.assert_array_equal(y, x.reshape(to))
        assert len(compiled.variants) == 2


def test_sizes_that_are_not_proved_to_go_together_get_a_program_each():
    with tilewright.compile(APART, target="cpu") as compiled:
        assert not compiled.variants
        for n, m in ((3, 3), (1, 4)):
            x, y = np.ones((n, 2), np.float32), np.ones((m, 2), np.float32)
            np.testing.assert_array_equal(compiled(x, y)[0], x + y)
        assert len(compiled.variants) == 2


def test_declared_shapes_can_be_replaced():
    fixed = model([("Relu", ["x"], ["y"])], [("x", F, [10, 2])], [("y", F)])
    x = np.ones((3, 2), np.float32)
    with pytest.raises(DimError, match="do not have the sizes that the model declares"):
        tilewright.compile(fixed, target="cpu")(x)
    free = tilewright.compile(fixed, dynamic_shapes={"x": ("n", 2)}, target="cpu")
    np.testing.assert_array_equal(free(x)[0], x)


def test_a_saved_model_is_called_the_same(compiled, path, tmp_path):
    x = np.ones((2, 3), np.float32)
    from_file = tilewright.compile(path, [x], target="cpu")
    loaded = tilewright.load(from_file.save(tmp_path / "artifact"))
    for result, want in zip(loaded(x), compiled(x), strict=True):
        np.testing.assert_array_equal(np.asarray(result), want)


def test_what_is_unsupported_is_listed_at_once():
    odd = model(
        [("StringNormalizer", ["x"], ["y"]), ("Nonsense", ["y"], ["z"]), ("Odd", ["x"], ["v"])],
        [("x", F, [2])],
        [("z", F), ("v", F)],
    )
    with pytest.raises(UnsupportedOp, match="unsupported operators") as caught:
        tilewright.compile(odd, target="cpu")
    assert "StringNormalizer" in str(caught.value)
    assert "Odd" in str(caught.value)


def test_what_is_no_model_is_refused():
    with pytest.raises(tilewright.CheckpointError, match="does not exist"):
        tilewright.compile("nowhere.onnx")
    data = MODEL.SerializeToString().replace(b"in:0", b"in\xff0")
    with pytest.raises(tilewright.CheckpointError, match="no UTF-8"):
        tilewright.compile(onnx.ModelProto.FromString(data), target="cpu")
    with pytest.raises(OptionError, match="no option named 'weight_dtype'"):
        tilewright.compile(MODEL, options={"weight_dtype": "bf16"})
    with pytest.raises(OptionError, match="shapes or values are given for 'y'"):
        tilewright.compile(MODEL, [np.ones((2, 3), np.float32)], dynamic_shapes={"y": (1,)})
    with pytest.raises(OptionError, match="shapes or values are given for 'y'"):
        tilewright.import_onnx(MODEL, shapes={"y": (1,)})
