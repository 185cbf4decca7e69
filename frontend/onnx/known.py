"""Tensors whose elements are known while a model is imported, and the builder that takes them.

A `Known` is a value of no graph: numbers of the file, or dims computed from shapes. Where an op
takes one, the builder puts what makes it into the graph first; where none does, nothing is left of
it. In the same way a sub-graph's builder takes values of the graph around it as inputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.dim import Expr, Symbol
from ...ir.facts import Facts
from ...ir.graph import Graph, Node, Value
from ...ir.lazy_arrays import LazyArray, in_memory
from ...ir.op import Op
from ...ir.types import DType, TensorType
from .packed import is_bytes

MAX_DIMS = 4096  # elements that are looked at one by one


class Known(Value):
    """A tensor that is known: an array (perhaps not read yet), or an array of dims."""

    __slots__ = ("_dims", "lazy")

    def __init__(
        self, type: TensorType, name: str | None, lazy: LazyArray | None, dims: np.ndarray | None
    ):
        super().__init__(type, name)
        self.lazy = lazy  # None where it holds dims that are no numbers
        self._dims = dims

    @staticmethod
    def stored(array: LazyArray, name: str | None = None) -> "Known":
        """An array of the model, which is not read before it is needed."""
        return Known(TensorType(array.shape, array.dtype), name, array, None)

    @staticmethod
    def of_array(array: np.ndarray) -> "Known":
        """Numbers; TypeError for a dtype that we lack."""
        return Known.stored(in_memory(np.asarray(array)))

    @staticmethod
    def of_dims(dims: Any, dtype: DType) -> "Known":
        """An array (or list) of dims, whose elements are of `dtype`."""
        items = np.asarray(dims, object)
        if any(isinstance(dim, Expr) for dim in items.flat):
            return Known(TensorType(items.shape, dtype), None, None, items)
        numbers = [dtype.element(item) for item in items.flat]
        return Known.of_array(np.array(numbers, dtype.numpy).reshape(items.shape))

    @property
    def count(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def array(self) -> np.ndarray | None:
        """The numbers, None where some are dims."""
        return None if self.lazy is None else self.lazy.load()

    @property
    def dims(self) -> np.ndarray | None:
        """The elements as an array of Python numbers and dims; None where they are too many."""
        if self._dims is None and self.lazy is not None and self.count <= MAX_DIMS:
            array = self.lazy.load()
            items = np.empty(array.shape, object)
            items.reshape(-1)[:] = array.reshape(-1).tolist()
            self._dims = items
        return self._dims


class OnnxBuilder(Builder):
    """A builder whose ops take values of graphs around its own, and known ones of none.

    `outer` is the builder of the graph around a sub-graph's.
    """

    def __init__(
        self,
        name: str,
        symbols: Iterable[Symbol] = (),
        outer: "OnnxBuilder | None" = None,
    ):
        super().__init__(name, symbols)
        self.outer = outer
        self.stored: dict[str, LazyArray] = {}  # arrays of weights
        # of a whole model: names of late dims are not used twice
        self.numbers: Iterator[int] = outer.numbers if outer is not None else count()
        self.captured: dict[Value, Value] = {}  # value around it -> input that stands for it
        self._own: set[Value] = set()
        self._made: dict[Value, Value] = {}
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """Queries over the dims declared so far."""
        if self._facts is None or self._facts.symbols.keys() != self.symbols.keys():
            self._facts = Facts(self.symbols)
        return self._facts

    def late_dim(self, name: str, lo: int = 0, hi: int | None = None) -> str:
        """Declare a symbol that a node is going to bind. -> its name, unique in the whole model."""
        while (unique := f"{name}_{next(self.numbers)}") in self.symbols:
            pass
        self.symbols[unique] = Symbol(unique, lo, hi)
        return unique

    def node(
        self, op: Op, operands: Sequence[Value], attrs: Mapping[str, Any], *, loc: str | None = None
    ) -> Node:
        """Append a node, its operands made values of this graph."""
        fixed = {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}
        node = super().node(op, [self.real(v) for v in operands], fixed, loc=loc)
        self._own.update(node.results)
        return node

    def _declare(self, to: list[Value], name: str, shape: Any, dtype: DType) -> Value:
        value = super()._declare(to, name, shape, dtype)
        self._own.add(value)
        return value

    def graph(self, outputs: Any) -> Graph:
        """The finished graph."""
        return super().graph([self.real(v) for v in outputs])

    def real(self, value: Value) -> Value:
        """The value of this graph that `value` is, or becomes; TypeError for what is none."""
        if not isinstance(value, Value):
            raise TypeError(f"an operand is left out, or is no tensor but {type(value).__name__}")
        if value in self._own:
            return value
        if value not in self._made:
            self._made[value] = self._make(value)
        return self._made[value]

    def _make(self, value: Value) -> Value:
        if not isinstance(value, Known):
            return self._capture(value)
        if value.lazy is None:
            return self._of_dims(value)
        if value.count <= 1 or (value.name is None and value.count <= MAX_DIMS):
            uniform = _uniform(value)
            if uniform is not None:
                return self.full(value=uniform, shape=value.shape, dtype=value.dtype)
        if self.outer is not None:
            return self._capture(value)
        name, number = value.name or "constant", 1
        inputs = {v.name for v in self.inputs}
        while name in inputs or name in self.stored:
            number += 1
            name = f"{value.name or 'constant'}_{number}"
        self.stored[name] = value.lazy
        return self.weight(name, value.shape, value.dtype)

    def _of_dims(self, value: Known) -> Value:
        assert value.dims is not None, "it holds dims"
        parts = [self.dim_value(value=dim, dtype=value.dtype) for dim in value.dims.flat]
        if not value.shape:
            return parts[0]
        ones = [self.reshape(part, shape=(1,)) for part in parts]
        row = ones[0] if len(ones) == 1 else self.concat(*ones, axis=0)
        return row if value.type.rank == 1 else self.reshape(row, shape=value.shape)

    def _capture(self, value: Value) -> Value:
        assert self.outer is not None, f"{value} is of another graph"
        inner = self.input(f"outer_{len(self.captured)}", value.shape, value.dtype)
        self.captured[value] = inner
        return inner


def _uniform(value: Known) -> float | int | bool | None:
    """The number that all elements are; None where they differ, or where text has none for it."""
    if is_bytes(value.dtype):
        return None
    array = value.array
    assert array is not None, "it holds numbers"
    if array.size == 0:
        return value.dtype.element(0)
    first = array.reshape(-1)[0]
    if first != first or not bool((array == first).all()):
        return None
    if value.dtype.is_float and first == 0 and np.signbit(array.astype(np.float64)).any():
        return None  # -0.0 equals 0.0
    return first.item() if not value.dtype.is_float else float(first)
