"""Models of one operator, by the reference of our IR, by onnxruntime, and by ONNX's reference."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tilewright.frontend.onnx.import_model import NeedsInputs, import_onnx
from tilewright.ir.evaluate import evaluate


def single(op, inputs, outputs=1, *, opset=18, domain="", stored=(), **attributes):
    """A ModelProto of one node; inputs in order, None where left out, by the names x0, x1, ...

    Those whose number is in `stored` are initializers, the others inputs of the model.
    """
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    given = {n: np.asarray(x) for n, x in zip(names, inputs) if x is not None}
    kept = {f"x{i}" for i in stored}
    node = helper.make_node(
        op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes
    )
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if n not in kept
    ]
    graph = helper.make_graph(
        [node],
        "single",
        infos,
        [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)],
        [onnx.numpy_helper.from_array(a, n) for n, a in given.items() if n in kept],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def arrays_of(proto, inputs):
    """The model's own inputs by name."""
    given = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    return {value.name: given[value.name] for value in proto.graph.input}


def ours(proto, arrays):
    """The outputs by the reference; numbers that decide the graph's form are compiled in."""
    values, imported = {}, None
    while imported is None:
        try:
            imported = import_onnx(proto, values=values)
        except NeedsInputs as needed:
            values |= {name: arrays[name] for name in needed.names}
    given = {name: in_bytes(x) for name, x in arrays.items() if name not in values}
    outputs, _ = evaluate(imported.graph, given, imported.weights, precision=None)
    return outputs


def in_bytes(array):
    """Numbers of less than a byte in bytes of their own, as graphs have them."""
    names = {"int4": np.int8, "int2": np.int8, "uint4": np.uint8, "uint2": np.uint8}
    return array.astype(names.get(array.dtype.name, array.dtype))


def runtime(proto, arrays):
    """The outputs by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, arrays)


def reference(proto, arrays):
    """The outputs by ONNX's reference."""
    return ReferenceEvaluator(proto).run(None, arrays)


def check(theirs, op, inputs, outputs=1, *, rtol=1e-5, atol=1e-5, **options):
    """Ours against `theirs`, on a model of one node."""
    proto = single(op, inputs, outputs, **options)
    arrays = arrays_of(proto, inputs)
    wanted = theirs(proto, arrays)
    found = ours(proto, arrays)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        want = in_bytes(np.asarray(want))
        assert got.dtype == want.dtype
        got, want = (np.asarray(v, np.float64) for v in (got, want))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    return found


def info(name, dtype=TensorProto.FLOAT, shape=None):
    """What a sub-graph says of an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)
