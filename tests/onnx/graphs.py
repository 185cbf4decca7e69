"""ONNX models of a few nodes."""

import numpy as np
import onnx
from onnx import helper


def model(nodes, inputs, outputs, weights=(), functions=(), domains=()):
    """A ModelProto; nodes are (operator, inputs, outputs), and a dict of attributes for some.

    Inputs are (name, element type, shape), outputs (name, element type).
    """
    graph = helper.make_graph(
        [helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {})) for n in nodes],
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o, None) for o in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions)
