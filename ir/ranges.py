"""Between which dims all elements of an integer value lie."""

from collections.abc import Mapping
from typing import TypeAlias

from .dim import Dim, maximum, minimum
from .facts import Facts
from .graph import Node, Value

Range: TypeAlias = tuple[Dim | None, Dim | None]  # both ends included; None is unbounded
UNKNOWN: Range = (None, None)
DEPTH = 64  # operations that a proof looks back over

_SAME = frozenset("reshape transpose broadcast_to slice gather gather_elements cast".split())


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
            self._known[value] = self._held(value, self._computed(value.node, depth - 1))
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
        signed = dtype.kind == "int"
        top = 2 ** (dtype.bits - signed) - 1
        least = -top - 1 if signed else 0
        for end in found:
            if end is None:
                continue
            low, high = self._facts.bounds(end)
            if dtype.bits == 64:  # sizes without a bound are far from 2^63
                low, high = low or 0, high or 0
            if low is None or high is None or low < least or high > top:
                return UNKNOWN
        return found if None not in found or dtype.bits == 64 else UNKNOWN

    def _computed(self, node: Node, depth: int) -> Range:
        attrs = node.attrs
        ranges = [self.of(v, depth) for v in node.operands]
        match node.op.name:
            case name if name in _SAME:
                return ranges[0]
            case "full":
                value = int(attrs["value"])
                return value, value
            case "dim_value":
                return attrs["value"], attrs["value"]
            case "iota":
                first, last = attrs["start"], attrs["start"] + (attrs["length"] - 1) * attrs["step"]
                return (first, last) if attrs["step"] >= 0 else (last, first)
            case "check_index":
                return 0, attrs["size"] - 1
            case "argmax" | "argmin":
                return 0, node.operands[0].shape[attrs["axis"]] - 1
            case "concat":
                return self._either(ranges)
            case "where":
                return self._either(ranges[1:])
            case "pad":
                value = int(attrs["value"])
                return self._either([ranges[0], (value, value)])
            case "add":
                return _plus(*ranges)
            case "sub":
                return _plus(ranges[0], _minus(ranges[1]))
            case "neg":
                return _minus(ranges[0])
            case "mul":
                return self._times(*ranges)
            case "mod":
                return self._rest(*ranges)
            case "floordiv":
                return self._quotient(*ranges)
            case "minimum":
                lows = [low for low, _ in ranges if low is not None]
                highs = [high for _, high in ranges if high is not None]
                low = minimum(*lows) if len(lows) == 2 else None
                return low, minimum(*highs) if len(highs) == 2 else next(iter(highs), None)
            case "maximum":
                lows = [low for low, _ in ranges if low is not None]
                highs = [high for _, high in ranges if high is not None]
                low = maximum(*lows) if len(lows) == 2 else next(iter(lows), None)
                return low, maximum(*highs) if len(highs) == 2 else None
        return UNKNOWN

    def _either(self, ranges: list[Range]) -> Range:
        low, high = ranges[0]
        for other_low, other_high in ranges[1:]:
            low = None if low is None or other_low is None else minimum(low, other_low)
            high = None if high is None or other_high is None else maximum(high, other_high)
        return low, high

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


def _plus(a: Range, b: Range) -> Range:
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    return low, None if a[1] is None or b[1] is None else a[1] + b[1]


def _minus(a: Range) -> Range:
    return None if a[1] is None else a[1] * -1, None if a[0] is None else a[0] * -1
