"""Operators of ai.onnx.ml over numbers: ONNX's own reference computes them, on the host."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ....ir.dim import Dim, Expr
from ....ir.graph import Value
from ....ir.types import TensorType, dtype_of
from ...declined import Declined
from ..operators import ML, Call, onnx_op, refuses

Arrays = tuple[np.ndarray, ...]

_MAPS = "it takes or gives a map; leave it out (skl2onnx: zipmap=False), and pass numbers"


def _referred(call: Call, *operands: Value, **_: Any) -> Value | tuple[Value, ...]:
    """The operator as a call of ONNX's reference."""
    if any(attribute.ref_attr_name for attribute in call.node.attribute):
        raise Declined("its attributes are those of a function")
    node = onnx.NodeProto(op_type=call.node.op_type, domain=ML, attribute=call.node.attribute)
    node.input.extend(f"x{i}" for i in range(len(operands)))
    node.output.extend(f"y{i}" for i in range(call.num_outputs))
    try:
        compute = _reference_of(node, call.version)
        results = _result_types(compute, [x.type for x in operands])
    except Declined:
        raise
    except Exception as error:  # whatever is wrong with the node, the reference tells it
        raise Declined(f"ONNX's reference does not compute it: {error}") from error
    digest = hashlib.sha256(node.SerializeToString(deterministic=True)).hexdigest()[:16]
    return call.called(f"{ML}.{node.op_type}({digest})", compute, operands, results)


def _reference_of(node: onnx.NodeProto, version: int) -> Callable[..., Arrays]:
    inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.input]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = onnx.helper.make_graph([node], node.op_type, inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(ML, version)]
    session = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))

    def compute(*arrays: np.ndarray) -> Arrays:
        return tuple(session.run(None, dict(zip(node.input, arrays))))

    return compute


def _result_types(
    compute: Callable[..., Arrays], types: Sequence[TensorType]
) -> tuple[TensorType, ...]:
    """The types of what a function gives, found by calling it with zeros.

    Sizes that are not known are set to numbers that no other size is, twice: a size of a result is
    one of them, or the same number both times.
    """
    sizes = dict.fromkeys(dim for t in types for dim in t.shape)
    free = (n for n in count(3) if n not in sizes)
    found = []
    for _ in range(2):
        chosen = {dim: next(free) if isinstance(dim, Expr) else dim for dim in sizes}
        zeros = [np.zeros([chosen[dim] for dim in t.shape], t.dtype.numpy) for t in types]
        results = compute(*zeros)
        dims = {size: dim for dim, size in chosen.items()}
        found.append([_type_of(result, dims) for result in results])
    if found[0] != found[1]:
        raise Declined("the sizes of its results are in no plain relation to those of its inputs")
    return tuple(found[0])


def _type_of(result: Any, dims: dict[int, Dim]) -> TensorType:
    dtype = dtype_of(result.dtype) if isinstance(result, np.ndarray) else None
    if dtype is None:
        raise Declined("it gives no numbers; take its scores, or leave it out of the model")
    return TensorType(tuple(dims.get(size, size) for size in result.shape), dtype)


refuses(_MAPS, "CastMap", "DictVectorizer", "ZipMap", domain=ML)
refuses("it computes with strings; do it before the model", "CategoryMapper", domain=ML)
for _name in """
    ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier
    LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble
    TreeEnsembleClassifier TreeEnsembleRegressor
""".split():
    _attributes = onnx.defs.get_schema(_name, domain=ML).attributes
    onnx_op(_name, domain=ML, attributes=_attributes)(_referred)
