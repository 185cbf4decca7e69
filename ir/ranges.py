"""Between which dims all elements of an integer value lie."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeAlias

from .axes import combined_axes
from .dim import Dim, maximum, minimum, product, symbols_of
from .facts import Facts, of_all, of_known, plus, times
from .graph import Node, Value
from .index_map import Checked, Fill, Mapped, Number, Read, SymbolContext, leaves
from .scalar import Scalar

Range: TypeAlias = tuple[Dim | None, Dim | None]  # both ends included; None is unbounded
UNKNOWN: Range = (None, None)
DEPTH = 64  # operations that a proof looks back over


class Ranges:
    """Queries over the values of a graph. `given` holds ranges of inputs that are known."""

    def __init__(self, facts: Facts, given: Mapping[Value, Range] | None = None):
        self._facts = facts
        self._known: dict[Value, Range] = dict(given or {})

    def of(self, value: Value, depth: int = DEPTH) -> Range:
        """A range that holds every element; (None, None) when nothing is known."""
        if value not in self._known:
            if value.node is None or depth == 0 or value.dtype.is_float:
                return UNKNOWN
            self._known[value] = self._held(value, self._computed(value, depth - 1))
        return self._known[value]

    def inside(self, value: Value, size: Dim) -> bool:
        """Whether every element is proved to be in [0, size)."""
        low, high = self.of(value)
        if low is None or high is None:
            return False
        return self._facts.proved_le(0, low) and self._facts.proved_lt(high, size)

    def is_nonzero(self, value: Value) -> bool:
        """Whether no element can be 0."""
        low, high = self.of(value)
        above = low is not None and self._facts.proved_lt(0, low)
        return above or (high is not None and self._facts.proved_lt(high, 0))

    def numbers(self, value: Value) -> tuple[int | None, int | None]:
        """The range in numbers."""
        low, high = self.of(value)
        return (
            None if low is None else self._facts.bounds(low)[0],
            None if high is None else self._facts.bounds(high)[1],
        )

    def _held(self, value: Value, found: Range) -> Range:
        """`found`, unless arithmetic of the value's width could have wrapped round."""
        dtype = value.dtype
        if dtype.kind == "bool":
            return 0, 1
        least, largest = dtype.extremes
        for end in found:
            if end is None:
                continue
            low, high = self._facts.bounds(end)
            if dtype.bits == 64:  # sizes without a bound are far from 2^63
                low, high = low or 0, high or 0
            if low is None or high is None or low < least or high > largest:
                return UNKNOWN
        return found if None not in found or dtype.bits == 64 else UNKNOWN

    def _computed(self, value: Value, depth: int) -> Range:
        node = value.node
        assert node is not None, "only of what a node makes"
        op = node.op
        if op.value_range is not None:
            found = op.value_range(*(v.type for v in node.operands), **node.attrs)
            return found if len(node.results) == 1 else found[value.index]
        if op.tree is not None:
            ranges = {n: self.of(v, depth) for n, v in zip(op.operands, node.operands)}
            return self._scalar(op.tree, ranges, node.attrs)
        if op.combine is not None and op.combine.picks_index:
            shape = node.operands[0].shape
            return 0, product(shape[axis] for axis in combined_axes(node)) - 1
        if op.index_map is not None:
            at = SymbolContext(node, self._facts)
            return self._either([self._leaf(node, m, at, depth) for m in leaves(at.mapped)])
        return UNKNOWN

    def _leaf(self, node: Node, leaf: Mapped, at: SymbolContext, depth: int) -> Range:
        match leaf:
            case Read(operand):
                return self.of(node.operands[operand], depth)
            case Fill(value):
                return int(value), int(value)
            case Checked(size=size):
                return 0, size - 1
            case Number(value):
                ends = at.facts.ends(value)
                is_known = all(symbols_of(end).isdisjoint(at.extents) for end in ends)
                return ends if is_known else UNKNOWN
        return UNKNOWN

    def _scalar(
        self, tree: Scalar, operands: Mapping[str, Range], attrs: Mapping[str, Any]
    ) -> Range:
        """Interval arithmetic over the functions of the scalar language."""
        if tree.fn == "arg":
            return operands[tree.value]
        if tree.fn in ("const", "attr"):
            value = tree.value if tree.fn == "const" else attrs[tree.value]
            return (value, value) if isinstance(value, int) else UNKNOWN
        ranges = [self._scalar(arg, operands, attrs) for arg in tree.args]
        match tree.fn:
            case "where":
                return self._either(ranges[1:])
            case "add":
                return plus(*ranges)
            case "sub":
                return plus(ranges[0], times(ranges[1], -1))
            case "neg":
                return times(ranges[0], -1)
            case "mul":
                return self._times(*ranges)
            case "mod":
                return self._rest(*ranges)
            case "floordiv":
                return self._quotient(*ranges)
            case "minimum":
                lows, highs = zip(*ranges)
                return of_all(lows, minimum), of_known(highs, minimum)
            case "maximum":
                lows, highs = zip(*ranges)
                return of_known(lows, maximum), of_all(highs, maximum)
        return UNKNOWN

    def _either(self, ranges: list[Range]) -> Range:
        return reduce(
            lambda a, b: (of_all((a[0], b[0]), minimum), of_all((a[1], b[1]), maximum)), ranges
        )

    def _times(self, a: Range, b: Range) -> Range:
        (a_low, a_high), (b_low, b_high) = a, b
        if a_low is None or b_low is None:
            return UNKNOWN
        if not (self._facts.proved_le(0, a_low) and self._facts.proved_le(0, b_low)):
            return UNKNOWN
        return a_low * b_low, None if a_high is None or b_high is None else a_high * b_high

    def _rest(self, a: Range, b: Range) -> Range:
        low, high = b  # the rest has the sign of the divisor
        if low is not None and self._facts.proved_lt(0, low):
            return 0, None if high is None else high - 1
        return UNKNOWN

    def _quotient(self, a: Range, b: Range) -> Range:
        low, high = a
        if low is None or b[0] is None:
            return UNKNOWN
        if self._facts.proved_le(0, low) and self._facts.proved_lt(0, b[0]):
            return 0, high
        return UNKNOWN
