"""Numbers of less than a byte: stored so in weights, and computed in bytes of their own."""

from ...ir.builder import Builder, Rebuilder
from ...ir.graph import Graph, Value
from ...ir.types import DType, TensorType, i8, i32, u8
from ...ir.weight_only import weight_only


def widened(graph: Graph) -> Graph:
    """The graph with inputs, results and everything computed of i4, i2, u4 and u2 as i8 and u8.

    What is made of weights alone stays as it is.
    """
    values = {v for node in graph.nodes for v in (*node.operands, *node.results)}
    if not any(v.dtype.is_packed for v in (*values, *graph.inputs, *graph.outputs)):
        return graph
    b, stored = Rebuilder(graph), weight_only(graph)
    for number, value in enumerate(graph.inputs):
        if value.dtype.is_packed:
            type = TensorType(value.shape, wide(value.dtype))
            b.inputs[number] = Value(type, value.name)
            b[value] = _wrapped(b, b.inputs[number], value.dtype)
    for node in graph.nodes:
        result = node.results[0]
        changes = [v for v in node.operands if b[v].dtype != v.dtype]
        if changes:
            # what it is put together with is of the same dtype
            for v in node.operands:
                if b[v].dtype.is_packed and v.dtype == changes[0].dtype:
                    b[v] = b.cast(b[v], dtype=wide(v.dtype))
        if node.op.is_cast and result.dtype.is_packed and node not in stored:
            b[result] = _wrapped(b, b[node.operands[0]], result.dtype)
        else:
            b.copy(node)
    for value in graph.outputs:
        if b[value].dtype.is_packed:
            b[value] = b.cast(b[value], dtype=wide(value.dtype))
    return b.finish()


def wide(dtype: DType) -> DType:
    """The dtype of whole bytes that holds a dtype of less than a byte."""
    return i8 if dtype.kind == "int" else u8


def _wrapped(b: Builder, x: Value, dtype: DType) -> Value:
    """X as a cast to `dtype` gives it: its lowest bits, of which the first may be a sign."""
    bits = b.and_(b.cast(x, dtype=i32), b.constant((1 << dtype.bits) - 1, i32))
    if dtype.kind == "int":
        sign = b.constant(1 << dtype.bits - 1, i32)
        bits = b.sub(b.xor(bits, sign), sign)
    return b.cast(bits, dtype=wide(dtype))
