"""ONNX models as graphs: names, shapes as dims, weights, functions, sub-graphs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.frontend.onnx.operators import ROWS
from tilewright.ir.errors import CheckpointError, ShapeError
from tilewright.ir.evaluate import evaluate

from ..onnx.graphs import model
from .onnx_single import single

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def run(proto, *arrays, **options):
    """The outputs by the reference."""
    imported = import_onnx(proto, **options)
    names = [tree.name for tree in imported.signature.positional if hasattr(tree, "name")]
    outputs, _ = evaluate(imported.graph, dict(zip(names, arrays)), imported.weights)
    return outputs


SHAPES = model(
    [
        ("Shape", ["x"], ["s"]),
        ("Gather", ["s", "zero"], ["n"]),
        ("Add", ["n", "one"], ["more"]),
        ("Cast", ["more"], ["count"], {"to": F}),
        ("Mul", ["x", "w"], ["y"]),
        ("Add", ["y", "count"], ["z"]),
    ],
    [("x", F, ["batch size", 3])],
    [("z", F), ("more", I64)],
    {"w": np.float32([1, 2, 3]), "zero": np.int64(0), "one": np.int64(1)},
)


def test_shapes_stay_dims_and_leave_nothing_in_the_graph():
    graph = import_onnx(SHAPES).graph
    assert list(graph.symbols) == ["batch_size"]
    assert [node.op.name for node in graph.nodes] == ["mul", "dim_value", "add", "dim_value"]


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_one_graph_holds_for_every_size(rows):
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    z, more = run(SHAPES, x)
    np.testing.assert_allclose(z, x * np.float32([1, 2, 3]) + rows + 1, rtol=1e-6)
    assert more == rows + 1


def test_a_file_is_the_same_as_the_model_in_memory(tmp_path):
    big = model(
        [("Add", ["x", "w"], ["y"])],
        [("x", F, [200])],
        [("y", F)],
        {"w": np.arange(200, dtype=np.float32)},
    )
    onnx.save(big, tmp_path / "m.onnx")
    x = np.ones(200, np.float32)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", x), run(big, x))


def test_a_damaged_graph_is_told_with_the_file_that_it_is_in(tmp_path):
    opset = [helper.make_opsetid("", 17)]
    same = helper.make_node("Identity", ["a"], ["b"])
    function = helper.make_function("own", "Same", ["a"], ["b"], [same], opset)
    damaged = model(
        [("Relu", ["nothing"], ["y"])],
        [("x", F, [2])],
        [("y", F)],
        functions=[function],
        domains=["own"],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(damaged.SerializeToString())
    with pytest.raises(CheckpointError, match="which nothing computes") as caught:
        import_onnx(path)
    assert caught.value.where == str(path)


X = np.arange(6, dtype=np.float32).reshape(2, 3)
FLAGS = {
    "Mod": ([X, X + 1], {"fmod": 3}),
    "ReduceSum": ([X], {"keepdims": 2}),
    "TopK": ([X, np.int64([1])], {"largest": -1}),
    "Gemm": ([X, X], {"transB": 2}),
    "AveragePool": ([X[None, None]], {"kernel_shape": [2, 2], "count_include_pad": 7}),
}


@pytest.mark.parametrize(("op", "given"), FLAGS.items())
def test_flags_are_0_or_1(op, given):
    inputs, attributes = given
    proto = single(op, inputs, stored=range(1, len(inputs)), **attributes)
    *_, (name, value) = attributes.items()
    says = rf"{op}: its inputs or attributes do not fit: {name} is {value}, neither 0 nor 1"
    with pytest.raises(ShapeError, match=says):
        import_onnx(proto)
    # where the attribute is that of the function around it
    node = helper.make_node(op, proto.graph.node[0].input, ["y0"], **attributes)
    for attribute in node.attribute:
        if attribute.name == name:
            attribute.Clear()
            attribute.name, attribute.type = name, onnx.AttributeProto.INT
            attribute.ref_attr_name = "flag"
    function = helper.make_function(
        "own", "Same", node.input, ["y0"], [node], proto.opset_import, ["flag"]
    )
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    own = helper.make_node("Same", node.input, ["y0"], domain="own", flag=value)
    proto.graph.node[0].CopyFrom(own)
    with pytest.raises(ShapeError, match=f"{name} is {value}, neither 0 nor 1"):
        import_onnx(proto)


def test_every_row_takes_flags_as_bools():
    of_flags = [(row, name) for rows in ROWS.values() for row in rows for name in _flags(row)]
    assert len(of_flags) > 60
    for row, name in of_flags:
        assert row.checked([], {name: 1}) == {name: True}
        assert row.checked([], {name: 0})[name] is False
        with pytest.raises(TypeError, match=f"{name} is 2, neither"):
            row.checked([], {name: 2})


def _flags(row):
    return [name for name, kind in row.attributes.items() if kind is bool]
