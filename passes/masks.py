"""What a mask says: a mask subgraph read as conditions on query i and key j.

The element of a mask at [..., i, j] is followed through views, comparisons and index sources to a
condition in dims over the symbols `_i` and `_j`. What cannot be read is left as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.dim import Dim, symbol, symbols_of
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import Fill, Index, IndexContext, Mapped, Number, Read, map_index
from ..ir.indexing import AxisFacts, broadcast_index
from ..ir.scalar import Scalar
from ..ir.types import bool_
from .patterns import constant_of

I, J = symbol("_i"), symbol("_j")
LARGE = 1e4  # a float mask's "not seen" is minus infinity, or below minus this


@dataclass(frozen=True)
class AtMost:
    """difference <= 0."""

    difference: Dim


@dataclass(frozen=True)
class Decided:
    """True or false for every query and key."""

    value: bool


Condition = AtMost | Decided
Conditions = tuple[Condition, ...]  # all must hold


@dataclass(frozen=True)
class Reading:
    """A mask, read: causal or not, the window, and what could not be read (all must hold).

    `is_finite`: a float mask adds a large number and not minus infinity, so that a query none of
    whose keys is seen weighs its keys all the same.
    """

    is_causal: bool
    window: int | None
    rest: tuple[Value, ...]
    is_finite: bool = False


def read_mask(graph: Graph, mask: Value, queries: Dim, keys: Dim) -> Reading:
    """Read a mask of [..., queries, keys]. Recognizes nothing in one it does not understand."""
    reader = MaskReader(graph, queries, keys)
    is_causal, rest = False, []
    widths: list[int] = []
    for part in _conjuncts(mask):
        conditions = reader.conditions_of(part)
        meanings = None if conditions is None else [reader.meaning(c) for c in conditions]
        if meanings is None or None in meanings:
            rest.append(part)
            continue
        is_causal = is_causal or "causal" in meanings
        widths += [m for m in meanings if isinstance(m, int)]
    if widths and not is_causal:
        return Reading(False, None, (mask,))  # a window alone bounds one side only: keep the mask
    return Reading(is_causal, min(widths, default=None), tuple(rest), reader.is_finite)


def _conjuncts(mask: Value) -> list[Value]:
    """Parts that must all hold: of `and`, and of sums of float masks."""
    node = mask.node
    if node is not None and node.op.name in ("and", "add"):
        return [part for v in node.operands for part in _conjuncts(v)]
    return [mask]


class MaskReader:
    """Follows elements of a mask from index to index, to conditions, integers and dims."""

    def __init__(self, graph: Graph, queries: Dim, keys: Dim):
        self.queries, self.keys = queries, keys
        self.is_finite = False  # a fill that was read is a large number, not minus infinity
        self.facts = AxisFacts(graph.symbols, {"_i": queries, "_j": keys})

    # ---- conditions ----

    def conditions_of(self, part: Value) -> Conditions | None:
        """The conditions under which a key is seen, None when they cannot be read.

        They are of any head and sequence: what is made of them holds for all or means nothing.
        """
        places = [symbol(f"_b{axis}") for axis in range(part.type.rank - 2)]
        for place, size in zip(places, part.shape):
            self.facts.declare(str(place), size)
        index = broadcast_index((*places, I, J), part.type)
        return (self.added if part.dtype.is_float else self.holding)(part, index)

    def holding(self, value: Value, index: Index, wanted: bool = True) -> Conditions | None:
        """The conditions under which a bool is `wanted`; of several only one form may say it.

        Other numbers hold where they are not 0.
        """
        known, node = constant_of(value), value.node
        if known is not None:
            return (Decided(bool(known) == wanted),)
        if node is None:
            return None
        inner = self.through(node, index)
        if inner is not None:
            return self.holding(*inner, wanted)
        name, at = node.op.name, [(v, broadcast_index(index, v.type)) for v in node.operands]
        if name == "not":
            return self.holding(*at[0], not wanted)
        if node.op.is_cast and bool_ in (value.dtype, node.operands[0].dtype):
            return self.holding(*at[0], wanted)
        if name == "ne" and constant_of(node.operands[1]) == 0:
            return self.holding(*at[0], wanted)
        if name == "where":
            sides = [constant_of(v) for v in node.operands[1:]]
            if None not in sides and bool(sides[0]) != bool(sides[1]):
                return self.holding(*at[0], wanted == bool(sides[0]))
        if name == ("and" if wanted else "or"):  # not (a or b)  is  not a and not b
            parts = [self.holding(*operand, wanted) for operand in at]
            return None if None in parts else tuple(c for part in parts for c in part or ())
        if name in ("le", "lt", "ge", "gt"):
            left, right = (self.integer(*operand) for operand in at)
            if left is not None and right is not None:
                return (_compared(name, left, right, wanted),)
        return None

    def added(self, value: Value, index: Index) -> Conditions | None:
        """where(c, 0, -inf)  ->  c, and the other way round"""
        if constant_of(value) == 0:
            return (Decided(True),)
        node = value.node
        if node is None:
            return None
        inner = self.through(node, index)
        if inner is not None:
            return self.added(*inner)
        if node.op.name == "cast" and node.operands[0].dtype.is_float:
            return self.added(node.operands[0], index)
        if node.op.name != "where":
            return None
        condition, then, other = node.operands
        at = broadcast_index(index, condition.type)
        for wanted, seen, unseen in ((True, then, other), (False, other, then)):
            if constant_of(seen) == 0 and is_large_negative(unseen):
                self.is_finite = self.is_finite or constant_of(unseen) != float("-inf")
                return self.holding(condition, at, wanted)
        return None

    # ---- integers and views ----

    def integer(self, value: Value, index: Index) -> Dim | None:
        """The element as a dim, None when it is not one."""
        node = value.node
        if node is None:
            return None
        if node.op.tree is not None:
            operands = {
                name: self.integer(v, broadcast_index(index, v.type))
                for name, v in zip(node.op.operands, node.operands)
            }
            return _integer_of(node.op.tree, operands)
        match self.mapped(node, index):
            case Read(operand, inner):
                return self.integer(node.operands[operand], inner)
            case Fill(number):
                return int(number) if float(number).is_integer() else None
            case Number(dim):
                return dim
        return None

    def through(self, node: Node, index: Index) -> tuple[Value, Index] | None:
        """Where a view's (or a lookup's) element comes from; None for other ops."""
        mapped = self.mapped(node, index)
        return (node.operands[mapped.operand], mapped.index) if isinstance(mapped, Read) else None

    def mapped(self, node: Node, index: Index) -> Mapped | None:
        """What the op's index map says, None when it has none or looks up what is not a dim."""
        if node.op.index_map is None:
            return None
        at = _Lookups(self, node)
        mapped = map_index(node, at, index)
        return None if at.failed else mapped

    # ---- meaning ----

    def meaning(self, condition: Condition) -> str | int | None:
        """One of "causal" and "always", a window's width, or None: it means nothing to us."""
        if isinstance(condition, Decided):
            return "always" if condition.value else None
        difference, offset = condition.difference, self.keys - self.queries
        above = difference - (J - I)  # j - i + above <= 0
        if not symbols_of(above) & {"_i", "_j"}:
            if above == -offset:
                return "causal"
            # j - i is at most keys - 1
            return "always" if self.facts.proved_le(self.keys - 1 + above, 0) else None
        below = difference - (I - J)  # i - j + below <= 0
        if not symbols_of(below) & {"_i", "_j"}:
            width = offset + 1 - below
            if isinstance(width, int) and width >= 1:
                return width
            # i - j is at most queries - 1
            return "always" if self.facts.proved_le(self.queries - 1 + below, 0) else None
        return None


class _Lookups(IndexContext):
    """Lookups whose index is a dim."""

    def __init__(self, reader: MaskReader, node: Node):
        self.reader, self.node = reader, node
        self.result, self.facts = node.results[0].type, reader.facts
        self.failed = False

    def lookup(self, operand: int, index: Index, size: Dim) -> Dim:
        found = self.reader.integer(self.node.operands[operand], index)
        self.failed = self.failed or found is None
        return 0 if found is None else found


def is_large_negative(value: Value) -> bool:
    """Whether a float mask says by this number that a key is not seen."""
    number = constant_of(value)
    return number is not None and number <= -LARGE


def _integer_of(tree: Scalar, operands: Mapping[str, Dim | None]) -> Dim | None:
    if tree.fn == "arg":
        return operands[tree.value]
    if tree.fn not in ("add", "sub", "mul"):
        return None
    left, right = (_integer_of(arg, operands) for arg in tree.args)
    if left is None or right is None:
        return None
    return {"add": left + right, "sub": left - right, "mul": left * right}[tree.fn]


def _compared(name: str, left: Dim, right: Dim, wanted: bool) -> Condition:
    """What left <= right, and so on, says of a difference; what it says where it is not so."""
    difference = left - right if name in ("le", "lt") else right - left
    if name in ("lt", "gt"):
        difference += 1
    if isinstance(difference, int):
        return Decided((difference <= 0) == wanted)
    return AtMost(difference if wanted else 1 - difference)  # not d <= 0  is  1 - d <= 0
