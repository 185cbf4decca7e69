"""The graph: an ordered, immutable list of nodes in SSA form.

Invariant: every op is pure. State (a KV pool, a mutated buffer) is an ordinary value that an op
consumes and returns; `updates` says which value is a state's content after the run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .dim import Expr, Symbol, symbols_of
from .facts import Facts
from .op import Op
from .types import DType, Shape, TensorType


class Value:
    """A tensor in a graph: an input, weight or state (which have names), or a node's result.

    Compared by identity. Immutable by convention: nothing assigns to it after construction,
    except that a Node claims its fresh results.
    """

    __slots__ = ("index", "name", "node", "type")

    def __init__(self, type: TensorType, name: str | None = None):
        self.type = type
        self.name = name
        self.node: Node | None = None
        self.index = 0

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        made_by = f" = {self.node.op.name}(...)" if self.node else ""
        return f"<value {self.name or ''}{made_by} : {self.type}>"


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. `attrs` holds every declared attribute, defaults included.

    `loc` says where in the user's model it comes from.
    """

    op: Op
    operands: tuple[Value, ...]
    attrs: Mapping[str, Any]
    results: tuple[Value, ...]
    loc: str | None = None

    def __post_init__(self):
        for index, result in enumerate(self.results):
            assert result.node is None, "a result belongs to one node"
            result.node = self
            result.index = index

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, f"{self.op.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def key(self) -> tuple[Any, ...]:
        """Op, types of operands and attributes: from them follow its types, axes and indices."""
        return self.op, tuple(v.type for v in self.operands), tuple(self.attrs.items())

    @property
    def regions(self) -> dict[str, "Graph"]:
        """Its sub-graphs, by the attributes that hold them."""
        if self.op.kind != "region":
            return {}
        return {name: value for name, value in self.attrs.items() if isinstance(value, Graph)}

    @property
    def is_step(self) -> bool:
        """Whether it is a step of a program by itself, and part of no kernel."""
        return self.op.kind in ("region", "call")

    @property
    def refusal(self) -> str | None:
        """Why no kernel takes it as it is; None where its op does not say."""
        refusal = self.op.refusal
        return refusal and refusal(*(v.type for v in self.operands), **self.attrs)

    @property
    def binds(self) -> tuple[str, ...]:
        """Symbols that have a value only once it has run."""
        return self.attrs.get("binds", ()) if self.op.kind == "call" else ()

    def __repr__(self) -> str:
        return f"<node {self.op.name} : {', '.join(str(r.type) for r in self.results)}>"


def symbols_in(node: Node) -> set[str]:
    """Symbols of a node's attributes and results, those of its sub-graphs too."""
    found: set[str] = set()
    for result in node.results:
        found |= result.type.symbols
    for value in node.attrs.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Expr):
                found |= symbols_of(item)
    for region in node.regions.values():
        found |= region.symbols.keys() - region.late_symbols
    return found


@dataclass(frozen=True, eq=False)
class Graph:
    """A function from inputs, weights and states to outputs and new states. Never mutated."""

    name: str
    symbols: Mapping[str, Symbol]
    inputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    states: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    updates: Mapping[str, Value] = field(default_factory=dict)  # state name -> its last value

    @cached_property
    def facts(self) -> Facts:
        """Queries over this graph's dims."""
        return Facts(self.symbols)

    @cached_property
    def uses(self) -> Mapping[Value, tuple[Node, ...]]:
        """Which nodes read a value, in order, a node once for each reading operand."""
        uses: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for operand in node.operands:
                uses.setdefault(operand, []).append(node)
        return {value: tuple(nodes) for value, nodes in uses.items()}

    @cached_property
    def late_symbols(self) -> frozenset[str]:
        """Symbols that nodes bind, those of sub-graphs too: no argument says what they are."""
        found: set[str] = set()
        for node in self.nodes:
            found.update(node.binds)
            for region in node.regions.values():
                found |= region.late_symbols
        return frozenset(found)

    @cached_property
    def binders(self) -> Mapping[Node, tuple[Node, ...]]:
        """For a node, those that bind symbols of its attributes and results: they come before."""
        by = {name: node for node in self.nodes for name in node.binds}
        if not by:
            return {}
        needed = {node: sorted(symbols_in(node) & by.keys()) for node in self.nodes}
        return {
            node: tuple(dict.fromkeys(by[name] for name in names if by[name] is not node))
            for node, names in needed.items()
        }

    @cached_property
    def sized(self) -> Mapping[Node, tuple[Node, ...]]:
        """For a node that binds symbols, the nodes that need them: the inverse of `binders`."""
        found: dict[Node, list[Node]] = {}
        for node, binders in self.binders.items():
            for binder in binders:
                found.setdefault(binder, []).append(node)
        return {binder: tuple(nodes) for binder, nodes in found.items()}

    @cached_property
    def results(self) -> frozenset[Value]:
        """Values that leave the graph: outputs and updates of states."""
        return frozenset((*self.outputs, *self.updates.values()))

    def arguments(self) -> Iterator[Value]:
        """Inputs, weights, then states."""
        yield from self.inputs
        yield from self.weights
        yield from self.states

    def is_weight(self, value: Value) -> bool:
        return value in self._weight_set

    @cached_property
    def _weight_set(self) -> frozenset[Value]:
        return frozenset(self.weights)

    def replace(self, **fields: Any) -> "Graph":
        """A copy with some fields replaced."""
        return replace(self, **fields)

    def __str__(self) -> str:
        from .text import print_graph

        return print_graph(self)
