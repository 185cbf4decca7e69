"""If, Loop, Scan, sequences and optionals of ONNX, compiled for the CPU, vs onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.ir.errors import UnsupportedOp

from .onnx_single import arrays_of, check, info, ours, reference, runtime, single

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def graph(nodes, inputs, outputs, stored=None):
    """A sub-graph: nodes as tuples, inputs and outputs as (name, element type)."""
    return helper.make_graph(
        [helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes],
        "part",
        [info(*i) for i in inputs],
        [info(*o) for o in outputs],
        [helper.make_tensor(n, *t) for n, t in (stored or {}).items()],
    )


X = np.float32([[1, -2, 3], [0.5, 4, -1]])


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_reads_what_is_around_it(flag):
    then = graph([("Add", ["x1", "x1"], ["t"])], [], [("t", F)])
    other = graph([("Mul", ["x1", "two"], ["o"])], [], [("o", F)], {"two": (F, [], [-2.0])})
    # x1 is read by the branches only: an operand of the node that it does not take
    proto = single("If", [np.array(flag)], then_branch=then, else_branch=other)
    proto.graph.input.append(info("x1", F, [2, 3]))
    arrays = {"x0": np.array(flag), "x1": X}
    (got,), (want,) = ours(proto, arrays), runtime(proto, arrays)
    np.testing.assert_array_equal(got, want)
    assert [n.op.name for n in import_onnx(proto).graph.nodes] == ["cond"]


def test_branches_of_other_shapes_are_chosen_by_the_number_of_the_input():
    then = graph([("ReduceSum", ["x1"], ["t"])], [], [("t", F)])
    other = graph([("Identity", ["x1"], ["o"])], [], [("o", F)])
    proto = single("If", [np.array(True)], then_branch=then, else_branch=other)
    proto.graph.input.append(info("x1", F, [2, 3]))
    for flag in (True, False):
        arrays = {"x0": np.array(flag), "x1": X}
        np.testing.assert_allclose(ours(proto, arrays)[0], runtime(proto, arrays)[0])


def body(nodes, states, rows=(), condition="go"):
    """A loop's body over "i", "go" and states (name -> name of the new value)."""
    inputs = [("i", I64, []), ("go", BOOL, []), *((name, F) for name in states)]
    outputs = [
        (condition, BOOL, []),
        *((new, F) for new in states.values()),
        *((r, F) for r in rows),
    ]
    return graph(nodes, inputs, outputs)


COUNTED = body(
    [
        ("Cast", ["i"], ["number"], {"to": F}),
        ("Add", ["a", "number"], ["a2"]),
        ("Mul", ["b", "a"], ["b2"]),
        ("Sub", ["a2", "b"], ["row"]),
        ("Identity", ["go"], ["go2"]),
    ],
    {"a": "a2", "b": "b2"},
    ["row"],
    "go2",
)
ENDED = body(
    [
        ("Add", ["a", "a"], ["a2"]),
        ("ReduceSum", ["a2"], ["sum"], {"keepdims": 0}),
        ("Less", ["sum", "x4"], ["go2"]),
        ("Sub", ["a2", "b"], ["row"]),
        ("Identity", ["b"], ["b2"]),
    ],
    {"a": "a2", "b": "b2"},
    ["row"],
    "go2",
)


@pytest.mark.parametrize("times", [0, 1, 4])
@pytest.mark.parametrize("is_known", [True, False])
def test_a_loop_of_a_known_and_of_a_given_number_of_times(times, is_known):
    inputs = [np.int64(times), np.array(True), X, X + 1]
    stored = (0, 1) if is_known else ()
    if times:
        check(runtime, "Loop", inputs, 3, body=COUNTED, stored=stored)
        return
    proto = single("Loop", inputs, 3, body=COUNTED, stored=stored)
    a, b, rows = ours(proto, arrays_of(proto, inputs))
    assert (a.tolist(), b.tolist()) == (X.tolist(), (X + 1).tolist())
    assert rows.shape == (0, 2, 3)  # onnxruntime forgets the shape of a row


@pytest.mark.parametrize("limit", [0.0, 20.0, 1e4])
@pytest.mark.parametrize("most", [3, 50])
def test_a_loop_that_ends_by_its_data(limit, most):
    inputs = [np.int64(most), np.array(True), np.abs(X), X]
    proto = single("Loop", inputs, 3, body=ENDED)
    proto.graph.input.append(info("x4", F, []))
    arrays = {**arrays_of(proto, [*inputs, np.float32(limit)])}
    for got, want in zip(ours(proto, arrays), runtime(proto, arrays), strict=True):
        if want.size:
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_loop_whose_state_has_another_type_each_time_is_written_out():
    shrinks = body(
        [("ReduceMax", ["a"], ["a2"], {"axes": [0], "keepdims": 0}), ("Identity", ["go"], ["go2"])],
        {"a": "a2"},
        condition="go2",
    )
    for times, want in ((1, X.max(0)), (2, X.max())):
        inputs = [np.int64(times), np.array(True), X]
        proto = single("Loop", inputs, 1, body=shrinks, opset=13)
        (got,) = ours(proto, arrays_of(proto, inputs))
        np.testing.assert_array_equal(got, want)


def test_a_loop_that_does_not_end_is_refused():
    proto = single("Loop", [None, np.array(True), X], 1, stored=(1,), body=body(
        [("Add", ["a", "a"], ["a2"]), ("Identity", ["go"], ["go2"])], {"a": "a2"}, condition="go2"
    ))  # fmt: skip
    with pytest.raises(UnsupportedOp, match="a loop that does not end"):
        import_onnx(proto)


STEP = graph(
    [("Add", ["s", "x"], ["s2"]), ("Mul", ["s", "y"], ["row"]), ("Neg", ["x"], ["less"])],
    [("s", F), ("x", F), ("y", F)],
    [("s2", F), ("row", F), ("less", F)],
)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_axes": [1, -1], "scan_input_directions": [0, 1]},
        {"scan_output_axes": [1, -1], "scan_output_directions": [1, 0]},
    ],
)
def test_scans(attributes):
    rng = np.random.default_rng(2)
    state, *xs = (rng.normal(size=s).astype(np.float32) for s in ((4,), (5, 4), (5, 4)))
    if "scan_input_axes" in attributes:
        xs = [x.T.copy() for x in xs]
    check(runtime, "Scan", [state, *xs], 3, body=STEP, num_scan_inputs=2, **attributes)


def test_a_scan_that_carries_nothing():
    each = graph([("Mul", ["x", "x"], ["row"])], [("x", F)], [("row", F)])
    check(runtime, "Scan", [X], 1, body=each, num_scan_inputs=1)


# ---- sequences -------------------------------------------------------------------------------


def sequence_model(nodes, inputs, outputs):
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes],
            "sequences",
            [info(n, F, x.shape) for n, x in inputs.items()],
            [helper.make_empty_tensor_value_info(n) for n in outputs],
            [helper.make_tensor(f"n{i}", I64, [], [i]) for i in (0, 1, 2)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )


def test_sequences_are_put_together_and_taken_apart():
    nodes = [
        ("SequenceConstruct", ["a", "b"], ["s"]),
        ("SequenceInsert", ["s", "c", "n1"], ["t"]),
        ("SequenceInsert", ["t", "a"], ["u"]),
        ("SequenceErase", ["u", "n0"], ["v"]),
        ("SequenceAt", ["v", "n2"], ["last"]),
        ("SequenceLength", ["v"], ["length"]),
        ("ConcatFromSequence", ["v"], ["joined"], {"axis": -1}),
        ("ConcatFromSequence", ["v"], ["stacked"], {"axis": 1, "new_axis": 1}),
        ("SplitToSequence", ["joined", "n2"], ["parts"], {"axis": 1}),
        ("SequenceAt", ["parts", "n1"], ["part"]),
    ]
    inputs = {"a": X, "b": X + 1, "c": X * 2}
    proto = sequence_model(nodes, inputs, ["last", "length", "joined", "stacked", "part"])
    for got, want in zip(ours(proto, inputs), reference(proto, inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_map_over_a_sequence_and_optionals():
    each = graph([("Add", ["x", "y"], ["z"])], [("x", F), ("y", F)], [("z", F)])
    nodes = [
        ("SequenceConstruct", ["a", "b"], ["s"]),
        ("SequenceMap", ["s", "a"], ["m"], {"body": each}),
        ("Optional", ["m"], ["o"]),
        ("OptionalHasElement", ["o"], ["has"]),
        ("OptionalGetElement", ["o"], ["again"]),
        ("ConcatFromSequence", ["again"], ["y"], {"axis": 0}),
    ]
    inputs = {"a": X, "b": X * 3}
    proto = sequence_model(nodes, inputs, ["y", "has"])
    y, has = ours(proto, inputs)
    np.testing.assert_array_equal(y, np.concatenate([X + X, X * 3 + X]))
    assert has.item() is True
