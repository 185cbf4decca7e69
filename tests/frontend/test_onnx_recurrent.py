"""LSTM, GRU and RNN of ONNX vs onnxruntime."""

import numpy as np
import pytest

from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.ir.errors import UnsupportedOp

from .onnx_single import arrays_of, check, ours, runtime, single

TIME, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def operands(op, directions, seed=0, *, state=True, peepholes=False, lengths=None):
    rng = np.random.default_rng(seed)

    def random(*shape):
        return rng.normal(size=shape).astype(np.float32)

    wide = GATES[op] * HIDDEN
    initial = random(directions, BATCH, HIDDEN) if state else None
    given = [
        random(TIME, BATCH, INPUTS),
        random(directions, wide, INPUTS),
        random(directions, wide, HIDDEN),
        random(directions, 2 * wide),
        None if lengths is None else np.array(lengths, np.int32),
        initial,
    ]
    if op == "LSTM":
        given.append(random(directions, BATCH, HIDDEN) if state else None)
        given.append(random(directions, 3 * HIDDEN) if peepholes else None)
    return given


CASES = [
    ("LSTM", "forward", {}, {}),
    ("LSTM", "reverse", {"peepholes": True}, {}),
    ("LSTM", "bidirectional", {"lengths": [5, 2, 3], "peepholes": True}, {"clip": 0.4}),
    ("LSTM", "bidirectional", {"state": False}, {"input_forget": 1}),
    ("LSTM", "bidirectional", {}, {"activations": ["Sigmoid", "Relu", "Tanh"] * 2}),
    ("GRU", "forward", {}, {"linear_before_reset": 1}),
    ("GRU", "reverse", {"lengths": [1, 5, 4]}, {"linear_before_reset": 1, "clip": 0.5}),
    ("GRU", "bidirectional", {"lengths": [3, 5, 1]}, {}),
    (
        *("GRU", "bidirectional", {"state": False}),
        {
            "activations": ["HardSigmoid", "LeakyRelu", "Sigmoid", "ScaledTanh"],
            "activation_alpha": [0.3, 0.02, 1.5],
            "activation_beta": [0.4, 0.7],
        },
    ),
    ("RNN", "forward", {"state": False}, {}),
    ("RNN", "reverse", {}, {"activations": ["Affine"], "activation_alpha": [0.5]}),
    (
        *("RNN", "bidirectional", {"lengths": [2, 4, 5]}),
        {"activations": ["Elu", "ThresholdedRelu"], "activation_alpha": [0.3, 0.2]},
    ),
    ("RNN", "bidirectional", {}, {"activations": ["Softsign", "Softplus"]}),
]


@pytest.mark.parametrize(("op", "direction", "given", "attributes"), CASES)
def test_layers(op, direction, given, attributes):
    inputs = operands(op, 2 if direction == "bidirectional" else 1, **given)
    attributes = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    check(runtime, op, inputs, 3 if op == "LSTM" else 2, opset=14, **attributes)


@pytest.mark.parametrize("op", GATES)
def test_a_single_step_is_no_loop(op):
    inputs = operands(op, 2)
    inputs[0] = inputs[0][:1]
    options = {"opset": 14, "hidden_size": HIDDEN, "direction": "bidirectional"}
    check(runtime, op, inputs, 3 if op == "LSTM" else 2, **options)
    graph = import_onnx(single(op, inputs, 2, **options)).graph
    assert "scan" not in {node.op.name for node in graph.nodes}


@pytest.mark.parametrize("op", GATES)
def test_batch_first_is_a_change_of_axes(op):
    inputs = operands(op, 1)
    outputs = 3 if op == "LSTM" else 2
    first = check(runtime, op, inputs, outputs, opset=14, hidden_size=HIDDEN)
    turned = [
        x.swapaxes(0, 1) if i in (0, 5, 6) and x is not None else x for i, x in enumerate(inputs)
    ]
    proto = single(op, turned, outputs, opset=14, hidden_size=HIDDEN, layout=1)
    y, *last = ours(proto, arrays_of(proto, turned))
    np.testing.assert_allclose(y, first[0].transpose(2, 0, 1, 3), rtol=1e-6)
    for got, want in zip(last, first[1:]):
        np.testing.assert_allclose(got, want.swapaxes(0, 1), rtol=1e-6)


def test_an_unknown_activation_is_told():
    inputs = operands("RNN", 1)
    proto = single("RNN", inputs, 2, hidden_size=HIDDEN, activations=["Swirl"])
    with pytest.raises(UnsupportedOp, match=r"RNN(.|\n)*the activation 'Swirl'"):
        ours(proto, arrays_of(proto, inputs))
