"""Functions: operators that stand for other nodes, in the model itself or by ONNX's definition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

from ...ir.graph import Value
from .model_file import ModelFile, domain_of
from .sizes import SHAPES
from .tensors import ELEMENT_TYPES


@dataclass(frozen=True)
class FunctionBody:
    """What a function is: its names of inputs and outputs, its nodes, and its own opsets."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    nodes: Sequence[NodeProto]
    versions: Mapping[str, int]
    defaults: Mapping[str, AttributeProto]


def body_of(
    file: ModelFile,
    node: NodeProto,
    version: int,
    operands: Sequence[Any],
    attributes: Mapping[str, AttributeProto],
) -> FunctionBody | None:
    """The function that a node calls; None where its operator is none."""
    domain = domain_of(node)
    function = file.functions.get((domain, node.op_type, node.overload))
    if function is None:
        function = _defined(domain, node, version, operands, attributes)
    if function is None:
        return None
    versions = {"": onnx.defs.onnx_opset_version(), domain: version, **opsets(function)}
    return FunctionBody(
        function.input,
        function.output,
        function.node,
        versions,
        {a.name: a for a in function.attribute_proto},
    )


def is_defined(domain: str, name: str, version: int) -> bool:
    """Whether an operator needs no row: ONNX defines it by a function, or it gives a shape."""
    if not domain and name in SHAPES:
        return True
    if not onnx.defs.has(name, version, domain):
        return False
    schema = onnx.defs.get_schema(name, version, domain)
    return schema.has_function or schema.has_context_dependent_function


def opsets(proto: Any) -> dict[str, int]:
    """The opset of each domain that a model or a function names."""
    return {domain_of(opset): opset.version for opset in proto.opset_import}


def _defined(
    domain: str,
    node: NodeProto,
    version: int,
    operands: Sequence[Any],
    attributes: Mapping[str, AttributeProto],
) -> FunctionProto | None:
    """The function by which ONNX defines an operator, for these types of operands."""
    if not onnx.defs.has(node.op_type, version, domain):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, domain)
    if schema.has_function:
        function = schema.function_body
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
        return _with_defaults(function, defaults)
    if not schema.has_context_dependent_function or not all(_has_type(x) for x in operands):
        return None
    resolved = NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    resolved.attribute.extend(attributes.values())
    types = [_type_of(x).SerializeToString() if x is not None else b"" for x in operands]
    text = schema.get_context_dependent_function(resolved.SerializeToString(), types)
    return FunctionProto.FromString(text) if text else None


def _with_defaults(function: FunctionProto, defaults: Sequence[AttributeProto]) -> FunctionProto:
    named = {a.name for a in function.attribute_proto}
    function.attribute_proto.extend(a for a in defaults if a.name not in named)
    return function


def _has_type(x: Any) -> bool:
    return x is None or (isinstance(x, Value) and x.dtype in ELEMENT_TYPES)


def _type_of(x: Value) -> TypeProto:
    shape = [dim if isinstance(dim, int) else str(dim) for dim in x.shape]
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES[x.dtype], shape)
