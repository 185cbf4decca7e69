"""Between which numbers all elements of an integer value lie."""

from ..ir.facts import Bounds, Facts
from ..ir.graph import Value

_SAME = frozenset("reshape transpose broadcast_to slice gather cast".split())
UNKNOWN: Bounds = (None, None)


def integer_bounds(value: Value, facts: Facts) -> Bounds:
    """An interval that holds every element; (None, None) when nothing is known."""
    node = value.node
    if node is None or not value.dtype.is_integer:
        return UNKNOWN
    match node.op.name:
        case name if name in _SAME:
            return integer_bounds(node.operands[0], facts)
        case "full":
            return node.attrs["value"], node.attrs["value"]
        case "dim_value":
            return facts.bounds(node.attrs["value"])
        case "iota":
            first = node.attrs["start"]
            last = first + (node.attrs["length"] - 1) * node.attrs["step"]
            ends = facts.bounds(first), facts.bounds(last)
            if node.attrs["step"] < 0:
                ends = ends[::-1]
            return ends[0][0], ends[1][1]
        case "add" | "sub":
            (low, high), (other_low, other_high) = (integer_bounds(v, facts) for v in node.operands)
            if node.op.name == "sub":
                other_low, other_high = (
                    None if bound is None else -bound for bound in (other_high, other_low)
                )
            return (
                None if low is None or other_low is None else low + other_low,
                None if high is None or other_high is None else high + other_high,
            )
    return UNKNOWN
