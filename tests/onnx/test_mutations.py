"""A bounded sample of damaged models; `mutations.py` runs as many as are asked for."""

import re
import subprocess
import sys

import pytest
from onnx import TensorProto

import tilewright
from tilewright.ir.errors import CheckpointError, ShapeError

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
        (("Hardmax", ["x"], ["y"], {"axis": 2}), "Hardmax: .*axis 2 of a value of rank 2"),
        (("Flatten", ["x"], ["y"], {"axis": 3}), "Flatten: .*axis 3 of"),
        (("LpNormalization", ["x"], ["y"], {"p": 3}), "LpNormalization: .*p = 3"),
        (("ReverseSequence", ["x", "n"], ["y"], {"batch_axis": 0}), "axis 0 is the batch's and"),
        (("Softmax", ["n"], ["y"]), "softmax: .*must be floats"),
        (("SequenceLength", ["x"], ["y"]), "SequenceLength: .*input 0 is a tensor"),
        (("Shape", ["parts"], ["y"]), "Shape: .*Shape of what is no tensor"),
    ],
)
def test_what_an_operator_is_given_is_of_its_class(node, problem):
    nodes = [("SequenceConstruct", ["x", "x"], ["parts"]), node]
    inputs = [("x", F, [2, 3]), ("n", TensorProto.INT64, [2])]
    with pytest.raises(ShapeError, match=problem):
        tilewright.import_onnx(model(nodes, inputs, [("y", F)]))


def test_what_a_node_has_to_have_is_told_before_it_is_imported():
    nodes = [("MatMul", ["x", ""], ["z"]), ("Concat", ["x", "x"], ["y"])]
    with pytest.raises(CheckpointError) as caught:
        tilewright.import_onnx(model(nodes, [("x", F, [2, 3])], [("y", F)]))
    assert "MatMul 'z': its input 1, B, is left out" in caught.value.facts
    assert "Concat 'y': its attribute axis is missing" in caught.value.facts
