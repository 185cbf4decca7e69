"""Index maps: which element of which operand each element of a result is.

The map of an op is a function of the index of a result's element; whoever follows an index (code
generation, ranges, masks, axes) interprets what it gives.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from .dim import Dim, symbol
from .facts import Facts
from .graph import Node
from .indexing import AxisFacts
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


class IndexContext(ABC):
    """What a map may ask for, besides the types and attributes it is given.

    `result` is the type of the node's result; `facts` know that each index is inside its axis.
    """

    result: TensorType
    facts: Facts

    @abstractmethod
    def lookup(self, operand: int, index: Index, size: Dim, *, wraps: bool = False) -> Dim:
        """An element of an operand, which is `Checked`, as part of an index."""


def map_index(node: Node, at: IndexContext, index: Index) -> Mapped:
    """What the element `index` of the node's result is. The op must have an index map."""
    return node.op.index_map(at, index, *(v.type for v in node.operands), **node.attrs)


def leaves(mapped: Mapped) -> Iterator[Read | Fill | Number | Checked]:
    """What an element may be, without the choices."""
    if isinstance(mapped, Choose):
        yield from leaves(mapped.then)
        yield from leaves(mapped.other)
    else:
        yield mapped


class SymbolContext(IndexContext):
    """The map of a node at `index`, (_i0, _i1, ...): what it does everywhere at once.

    What it looks up is in `lookups`, as (operand, index), and stands for itself as a symbol.
    """

    def __init__(self, node: Node, facts: Facts):
        self.result = node.results[0].type
        self.index = tuple(symbol(f"_i{i}") for i in range(self.result.rank))
        self.extents = {f"_i{i}": d for i, d in enumerate(self.result.shape)}
        self.lookups: list[tuple[int, Index]] = []
        self.facts = AxisFacts(facts.symbols, self.extents)

    def lookup(self, operand: int, index: Index, size: Dim, *, wraps: bool = False) -> Dim:
        name = f"_g{len(self.lookups)}"
        self.lookups.append((operand, index))
        return symbol(name)
