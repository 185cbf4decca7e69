"""Numbers that nothing computes in, as bytes: of less than a byte, and coded floats.

Of integers that are stored in less than a byte the weights stay so.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir.builder import Builder, Rebuilder
from ...ir.errors import UnsupportedModel
from ...ir.graph import Graph, Node, Value
from ...ir.lazy_arrays import LazyArray, in_memory
from ...ir.types import DType, dtype_of, f32, i8, i32, u8
from ...ir.weight_only import weight_only
from .formats import FORMATS, codes_of, decoded, encoded, is_coded

_CODED = {dtype.numpy for dtype in FORMATS.values()}


def widened(graph: Graph, stored: Mapping[str, LazyArray]) -> tuple[Graph, Mapping[str, LazyArray]]:
    """The graph with i4, i2, u4 and u2 as i8 and u8, and coded floats as their codes (u8).

    `stored` has the arrays of weights. What is made of weights of i4 and the like alone stays as it
    is. UnsupportedModel where something computes in such a dtype.
    """
    values = {v for node in graph.nodes for v in (*node.operands, *node.results)}
    if not any(is_bytes(v.dtype) for v in (*values, *graph.inputs, *graph.outputs)):
        return graph, stored
    work = _Widening(graph, stored)
    return work.run(), work.stored


def is_bytes(dtype: DType) -> bool:
    """Whether numbers of a dtype are bytes of another one in a graph."""
    return dtype.is_packed or is_coded(dtype)


def wide(dtype: DType) -> DType:
    """The dtype of whole bytes that holds one that nothing computes in."""
    return i8 if dtype.kind == "int" else u8


def in_bytes(value: Any) -> Any:
    """An array of such a dtype as the bytes that programs take for it; anything else as it is."""
    kind = value.dtype if isinstance(value, np.ndarray) else None
    if kind in _CODED:
        return value.view(np.uint8)
    dtype = None if kind is None else dtype_of(kind)
    return value.astype(wide(dtype).numpy) if dtype is not None and dtype.is_packed else value


def from_bytes(array: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The opposite: what a program gave as an array of `kind`."""
    return array.view(kind) if kind in _CODED else array.astype(kind, copy=False)


class _Widening:
    """The state of taking such dtypes out of a graph."""

    def __init__(self, graph: Graph, stored: Mapping[str, LazyArray]):
        self.graph, self.b = graph, Rebuilder(graph)
        self.kept = weight_only(graph)
        self.stored = {name: codes_of(array) for name, array in stored.items()}
        self._tables: dict[bytes, Value] = {}

    def run(self) -> Graph:
        b = self.b
        for values, replaced in ((self.graph.inputs, b.inputs), (self.graph.weights, b.weights)):
            for number, value in enumerate(values):
                if is_coded(value.dtype) or (value.dtype.is_packed and replaced is b.inputs):
                    replaced[number] = Value(value.type.with_dtype(wide(value.dtype)), value.name)
                    b[value] = replaced[number]
                    if replaced is b.inputs:
                        b[value] = _wrapped(b, b[value], value.dtype)
        for node in self.graph.nodes:
            with b.at(node.loc):
                self._node(node)
        for value in self.graph.outputs:
            if b[value].dtype.is_packed:
                b[value] = b.cast(b[value], dtype=wide(value.dtype))
        return b.finish()

    def _node(self, node: Node) -> None:
        b = self.b
        coded = [v for v in node.operands if is_coded(v.dtype)]
        if node.op.is_cast:
            self._cast(node)
            return
        if coded and not node.op.takes_packed:
            raise UnsupportedModel(
                f"{node.op.name} computes in {coded[0].dtype}, which is a dtype to store in",
                where=node.loc or "",
                fix="cast it in the model first",
            )
        changes = [v for v in node.operands if b[v].dtype != v.dtype]
        for v in node.operands:  # what it is put together with is of the same dtype
            if changes and b[v].dtype.is_packed and v.dtype == changes[0].dtype:
                b[v] = b.cast(b[v], dtype=wide(v.dtype))
        b.copy(node)

    def _cast(self, node: Node) -> None:
        b, (x,), (result,) = self.b, node.operands, node.results
        from_codes, to = is_coded(x.dtype), result.dtype
        source = decoded(b, b[x], x.dtype, self._table) if from_codes else b[x]
        if is_coded(to):
            b[result] = encoded(b, _as(b, source, f32), to, self._table)
        elif to.is_packed and node not in self.kept:
            b[result] = _wrapped(b, source, to)
        elif from_codes:
            b[result] = _as(b, source, to)
        else:
            b.copy(node)

    def _table(self, numbers: np.ndarray) -> Value:
        """A weight of these numbers; equal ones are one."""
        key = numbers.tobytes()
        if key not in self._tables:
            name = f"table_{len(self._tables)}"
            while name in self.stored:
                name += "_"
            self.stored[name] = in_memory(numbers)
            self._tables[key] = self.b.weight(name, numbers.shape, f32)
        return self._tables[key]


def _wrapped(b: Builder, x: Value, dtype: DType) -> Value:
    """X as a cast to `dtype` gives it: its lowest bits, of which the first may be a sign."""
    if dtype.bits == 8:
        return x
    bits = b.and_(b.cast(x, dtype=i32), b.constant((1 << dtype.bits) - 1, i32))
    if dtype.kind == "int":
        sign = b.constant(1 << dtype.bits - 1, i32)
        bits = b.sub(b.xor(bits, sign), sign)
    return b.cast(bits, dtype=wide(dtype))


def _as(b: Builder, x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else b.cast(x, dtype=dtype)
