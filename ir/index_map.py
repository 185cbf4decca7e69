"""Index maps: which element of which operand each element of a result is.

The map of an op is a function of the index of a result's element; whoever follows an index (code
generation, ranges, masks, axes) interprets what it gives.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .dim import Dim, symbol
from .facts import Facts
from .graph import Node, Value
from .indexing import AxisFacts, coefficient_of, linearize
from .types import TensorType

Index = tuple[Dim, ...]


@dataclass(frozen=True)
class Read:
    """Element `index` of operand number `operand`."""

    operand: int
    index: Index


@dataclass(frozen=True)
class Fill:
    """A constant."""

    value: float | int | bool


@dataclass(frozen=True)
class Number:
    """The number that a dim is."""

    value: Dim


@dataclass(frozen=True)
class Checked:
    """Element `index` of an operand, an integer that must be in [0, size).

    With `wraps`, in [-size, size), and size is added below 0.
    """

    operand: int
    index: Index
    size: Dim
    wraps: bool = False


@dataclass(frozen=True)
class Choose:
    """`then` where lhs < rhs, else `other`. Only the chosen side need be inside its operand."""

    lhs: Dim
    rhs: Dim
    then: "Mapped"
    other: "Mapped"


Mapped = Read | Fill | Number | Checked | Choose


class IndexContext:
    """What a map may ask for, besides the types and attributes it is given.

    `result` is the type of the node's result; `facts` know that each index is inside its axis.
    """

    def __init__(self, result: TensorType, facts: AxisFacts):
        self.result, self.facts = result, facts

    def lookup(self, operand: int, index: Index, size: Dim) -> Dim:
        """An element of an operand, which is `Checked`, as part of an index."""
        raise AssertionError("a view reads no operand as an index")


def map_index(node: Node, at: IndexContext, index: Index) -> Mapped:
    """What the element `index` of the node's result is. The op must have an index map."""
    assert node.op.index_map is not None, f"{node.op.name} has no index map"
    return node.op.index_map(at, index, *(v.type for v in node.operands), **node.attrs)


def leaves(mapped: Mapped) -> Iterator[Read | Fill | Number | Checked]:
    """What an element may be, without the choices."""
    if isinstance(mapped, Choose):
        yield from leaves(mapped.then)
        yield from leaves(mapped.other)
    else:
        yield mapped


def compared(mapped: Mapped) -> Iterator[Dim]:
    """The dims by which the map chooses."""
    if isinstance(mapped, Choose):
        yield from (mapped.lhs, mapped.rhs, *compared(mapped.then), *compared(mapped.other))


class SymbolContext(IndexContext):
    """The map of a node at `index`, (_i0, _i1, ...): `mapped` is what it does everywhere at once.

    What it looks up is in `lookups`, as (operand, index), by the symbol that stands for it.
    """

    def __init__(self, node: Node, facts: Facts):
        self.extents = extents_of(node.results[0].shape)
        super().__init__(node.results[0].type, AxisFacts(facts.symbols, self.extents))
        self.index: Index = tuple(map(symbol, self.extents))
        self.lookups: dict[str, tuple[int, Index]] = {}
        self.mapped = map_index(node, self, self.index)

    def lookup(self, operand: int, index: Index, size: Dim) -> Dim:
        name = f"_g{len(self.lookups)}"
        self.lookups[name] = operand, index
        return symbol(name)

    @property
    def reads(self) -> list[tuple[int, Index]]:
        """What is read, lookups too, as (operand, index)."""
        found = (m for m in leaves(self.mapped) if isinstance(m, (Read, Checked)))
        return [*((m.operand, m.index) for m in found), *self.lookups.values()]


@dataclass(frozen=True)
class Strided:
    """A value as a view of `source`: strides among its elements in row-major order."""

    source: Value
    strides: tuple[Dim, ...]


def strided_sources(value: Value, facts: Facts) -> Iterator[Strided]:
    """What `value` is a strided view of: itself, then what its views read, if that is strided."""
    known = AxisFacts(facts.symbols, extents_of(value.shape))
    names, index = list(known.extents), _index_of(known)
    while True:
        offset = linearize(index, value.shape)
        found = (coefficient_of(offset, name) for name in names)
        strides = tuple(stride for stride in found if stride is not None)
        if len(strides) == len(names):
            yield Strided(value, strides)
        node = value.node
        if node is None or not node.op.is_renaming or node.op.index_map is None:
            return
        mapped = map_index(node, IndexContext(node.results[0].type, known), index)
        if not isinstance(mapped, Read):
            return
        value, index = node.operands[mapped.operand], mapped.index


def stored_strides(value: Value, view: Value, facts: Facts) -> tuple[Dim | None, ...]:
    """Strides of the elements of `value` in `view`, which one-to-one views make of it.

    None for an axis along which they have no stride.
    """
    path: list[Node] = []
    while view is not value:
        assert view.node is not None, "no one-to-one view of the value"
        path.insert(0, view.node)
        view = view.node.operands[0]
    known = AxisFacts(facts.symbols, extents_of(value.shape))
    names, index = list(known.extents), _index_of(known)
    for node in path:
        assert node.op.inverse is not None, f"{node.op.name} is not one-to-one"
        index = node.op.inverse(known, index, node.operands[0].type, **node.attrs)
    offset = linearize(index, path[-1].results[0].shape if path else value.shape)
    return tuple(coefficient_of(offset, name) for name in names)


def extents_of(shape: Sequence[Dim]) -> dict[str, Dim]:
    """Names for the axes of a shape, _i0, _i1, ..., and their sizes."""
    return {f"_i{i}": d for i, d in enumerate(shape)}


def _index_of(known: AxisFacts) -> Index:
    return tuple(0 if d == 1 else symbol(n) for n, d in known.extents.items())
