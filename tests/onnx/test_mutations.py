"""A bounded sample of damaged models; `mutations.py` runs as many as are asked for."""

import re
import subprocess
import sys

import pytest
from onnx import TensorProto

import tilewright
from tilewright.ir.errors import ShapeError

from .graphs import model

F = TensorProto.FLOAT


def test_damaged_models_are_errors_of_ours():
    command = [sys.executable, "-m", "tilewright.tests.onnx.mutations", "--stored"]
    done = subprocess.run([*command, "--count", "120"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)(?:,|$)", done.stdout, re.M)}
    assert sum(counts.values()) == 120
    assert counts["imported"] > 10  # what is damaged is not always what is looked at
    assert counts["CheckpointError"] > 10


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (("Softmax", ["parts"], ["y"]), "Softmax: .*input 0 is a sequence"),
        (("Resize", ["x"], ["y"]), r"Resize: .*do not fit"),
        (("MatMul", ["x", ""], ["y"]), "MatMul: .*input 1 is left out"),
        (("SequenceLength", ["x"], ["y"]), "SequenceLength: .*input 0 is a tensor"),
        (("Shape", ["parts"], ["y"]), "Shape: .*Shape of what is no tensor"),
    ],
)
def test_what_an_operator_is_given_is_of_its_class(node, problem):
    nodes = [("SequenceConstruct", ["x", "x"], ["parts"]), node]
    with pytest.raises(ShapeError, match=problem):
        tilewright.import_onnx(model(nodes, [("x", F, [2, 3])], [("y", F)]))
