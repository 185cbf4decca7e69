"""Verbs that take the file of an ONNX model."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright
from tilewright.cli.app import run

from ..onnx.graphs import model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    net = model(
        [("Mul", ["x", "w"], ["y"]), ("Tanh", ["y"], ["z"])],
        [("x", TensorProto.FLOAT, ["rows", 4])],
        [("z", TensorProto.FLOAT)],
        {"w": np.float32([1, 2, 3, 4])},
    )
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    onnx.save(net, path)
    return path


def tilewright_(*args, code=0):
    with pytest.raises(SystemExit) as end:
        run([*map(str, args)])
    assert end.value.code == code


def test_inspect_says_what_is_in_it(path, capsys):
    tilewright_("inspect", path, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["kind"] == "ONNX model"
    assert facts["metadata"]["inputs"] == {"x": ["rows", 4]}
    assert facts["metadata"]["ops"] == {"Mul": 1, "Tanh": 1}
    assert facts["tensors"] == {"f32": {"count": 1, "bytes": 16}}


def test_opt_prints_its_graph(path, capsys):
    tilewright_("opt", path, "--passes", "dead-code")
    assert "%1 = tanh(%0) : f32[rows, 4]" in capsys.readouterr().out


def test_compile_writes_what_is_called_the_same(path, tmp_path):
    tilewright_("compile", path, "-o", tmp_path / "net", "--input", "x=f32[n, 4]", "--quiet")
    x = np.ones((3, 4), np.float32)
    with tilewright.load(tmp_path / "net") as loaded:
        (z,) = loaded(x)
    np.testing.assert_allclose(np.asarray(z), np.tanh(x * [1, 2, 3, 4]), rtol=1e-5)


def test_what_it_does_not_take_is_said(path, tmp_path, capsys):
    tilewright_("compile", path, "-o", tmp_path / "net", "--dim", "rows=1..8", code=1)
    assert "--dim is for modules" in capsys.readouterr().err
