"""Builds graphs: one method for each op, types inferred, errors in the user's terms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import ops as _ops  # noqa: F401  declares every op
from .dim import Dim, Expr, Symbol, symbol
from .errors import ShapeError
from .graph import Graph, Node, Value
from .op import REQUIRED, Op, get_op
from .types import DType, TensorType, f32


def infer(op: Op, operands: Sequence[Value], attrs: Mapping[str, Any]) -> tuple[TensorType, ...]:
    """Result types of `op`; ShapeError names the op and the operand types."""
    problem = op.check_arity(len(operands)) or _packed_problem(op, operands)
    if problem is None:
        try:
            types = op.rule(*(v.type for v in operands), **attrs)
        except TypeError as error:
            problem = str(error)
        else:
            return types if isinstance(types, tuple) else (types,)
    shown = ", ".join(f"{n} is {v.type}" for n, v in zip(_names(op, operands), operands))
    raise ShapeError(f"{op.name}: {problem}", facts=shown)


def _packed_problem(op: Op, operands: Sequence[Value]) -> str | None:
    packed = [v.dtype for v in operands if v.dtype.is_packed]
    if not packed or op.takes_packed:
        return None
    return f"{packed[0]} is a dtype to store in, not to compute in: cast it first"


def _names(op: Op, operands: Sequence[Value]) -> list[str]:
    names = () if op.is_variadic else op.operands
    return [*names[: len(operands)], *(f"operand {i}" for i in range(len(names), len(operands)))]


def complete_attrs(op: Op, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with defaults filled in, in declared order; ShapeError on unknown or missing ones."""
    unknown = [name for name in given if name not in op.attrs]
    missing = [n for n, (_, default) in op.attrs.items() if default is REQUIRED and n not in given]
    if unknown or missing:
        raise ShapeError(
            f"{op.name}: "
            + (f"no attribute {unknown[0]!r}" if unknown else f"needs {missing[0]!r}"),
            facts=f"its attributes are {', '.join(op.attrs) or 'none'}",
        )
    return {name: given.get(name, default) for name, (_, default) in op.attrs.items()}


class Builder:
    """Collects nodes; `graph(outputs)` makes the immutable Graph.

    `b.rms_norm(x, w, eps=1e-5)` appends a node and returns its result (a tuple of them when the
    op has several).
    """

    def __init__(self, name: str = "main", symbols: Iterable[Symbol] = ()):
        self.name = name
        self.symbols: dict[str, Symbol] = {s.name: s for s in symbols}
        self.inputs: list[Value] = []
        self.weights: list[Value] = []
        self.states: list[Value] = []
        self.nodes: list[Node] = []
        self.updates: dict[str, Value] = {}
        self.loc: str | None = None

    def dim(
        self,
        name: str,
        lo: int = 1,
        hi: int | None = None,
        multiple: int = 1,
        hint: int | None = None,
    ) -> Expr:
        """Declare a symbol and return it as a dim. A leading underscore is kept for loop axes."""
        if name.startswith("_"):
            raise ShapeError(
                f"a dim may not be called {name!r}", fix="names with _ are kernel axes"
            )
        self.symbols[name] = Symbol(name, lo, hi, multiple, hint)
        return symbol(name)

    def input(self, name: str, shape: Iterable[Dim], dtype: DType = f32) -> Value:
        """Declare an input."""
        return self._declare(self.inputs, name, shape, dtype)

    def weight(self, name: str, shape: Iterable[Dim], dtype: DType = f32) -> Value:
        """Declare a weight: a constant whose data is kept apart, under `name`."""
        return self._declare(self.weights, name, shape, dtype)

    def state(self, name: str, shape: Iterable[Dim], dtype: DType = f32) -> Value:
        """Declare a state: kept between runs, consumed and returned by state ops."""
        return self._declare(self.states, name, shape, dtype)

    def _declare(self, to: list[Value], name: str, shape: Iterable[Dim], dtype: DType) -> Value:
        value = Value(TensorType(tuple(shape), dtype), name)
        to.append(value)
        return value

    def node(
        self,
        op: Op,
        operands: Sequence[Value],
        attrs: Mapping[str, Any],
        *,
        loc: str | None = None,
    ) -> Node:
        """Append a node of `op`; types are inferred, attributes completed."""
        full = complete_attrs(op, attrs)
        results = tuple(Value(t) for t in infer(op, operands, full))
        node = Node(op, tuple(operands), full, results, loc or self.loc)
        self.nodes.append(node)
        return node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        op = get_op(name.rstrip("_"))

        def append(*operands: Value, **attrs: Any) -> Any:
            node = self.node(op, operands, attrs)
            return node.results[0] if len(node.results) == 1 else node.results

        return append

    def constant(self, value: float | int | bool, dtype: DType) -> Value:
        """A scalar constant (a `full` of rank 0)."""
        return self.full(value=value, shape=(), dtype=dtype)

    @contextmanager
    def at(self, loc: str | None):
        """Nodes appended inside carry `loc`."""
        before, self.loc = self.loc, loc
        try:
            yield self
        finally:
            self.loc = before

    def graph(self, outputs: Iterable[Value]) -> Graph:
        """The finished graph."""
        return Graph(
            self.name,
            dict(self.symbols),
            tuple(self.inputs),
            tuple(self.weights),
            tuple(self.states),
            tuple(self.nodes),
            tuple(outputs),
            dict(self.updates),
        )


def decomposed(op: Op, types: Iterable[TensorType], attrs: Mapping[str, Any]) -> Graph:
    """What `op` decomposes into for operands of these types, as a graph of them: x0, x1, ..."""
    assert op.decomposition is not None, f"{op.name} is not decomposed"
    b = Builder("decomposition")
    operands = [b.input(f"x{i}", type.shape, type.dtype) for i, type in enumerate(types)]
    return b.graph([op.decomposition(b, *operands, **attrs)])


class Rebuilder(Builder):
    """A builder that copies a graph node by node, so a rewrite says only what differs.

    `self[v]` is the new value for an old one; assign `self[old] = new` to redirect uses.
    """

    def __init__(self, graph: Graph):
        super().__init__(graph.name, graph.symbols.values())
        self.source = graph
        # arguments are shared, not copied: a Value without a node may be in many graphs
        self.inputs, self.weights = list(graph.inputs), list(graph.weights)
        self.states = list(graph.states)
        self._map: dict[Value, Value] = {value: value for value in graph.arguments()}

    def __getitem__(self, value: Value) -> Value:
        return self._map[value]

    def __setitem__(self, old: Value, new: Value) -> None:
        self._map[old] = new

    def __contains__(self, value: Value) -> bool:
        return value in self._map

    def copy(self, node: Node) -> Node:
        """Append `node` with its operands mapped; its results map to the copy's.

        A node none of whose operands changed is shared with the source, not copied; one whose
        operands kept their types keeps its own without inferring them again.
        """
        operands = tuple([self._map[v] for v in node.operands])
        if operands == node.operands:
            new = node
            self.nodes.append(node)
        elif all(a.type == b.type for a, b in zip(operands, node.operands)):
            results = tuple([Value(r.type) for r in node.results])
            new = Node(node.op, operands, node.attrs, results, node.loc)
            self.nodes.append(new)
        else:
            new = self.node(node.op, operands, node.attrs, loc=node.loc)
        self._map.update(zip(node.results, new.results))
        return new

    def finish(self) -> Graph:
        """The new graph, with the source's outputs and updates mapped."""
        updates = {name: self._map[v] for name, v in self.source.updates.items()}
        self.updates = {**updates, **self.updates}
        return self.graph(self._map[v] for v in self.source.outputs)
