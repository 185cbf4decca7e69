"""Patterns over values, made from the op declarations: `pat.mul(x, pat.rsqrt(x))`.

A match binds names to values (leaves), nodes (`bind=` of an op) and numbers (`Numeral`). Operands
of commutative ops are tried in both orders.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir import ops as _ops  # noqa: F401  declares every op
from ..ir.graph import Node, Value
from ..ir.op import Op, get_op


@dataclass(frozen=True)
class Match:
    """Bindings by name, and the nodes that the pattern went through, the root last."""

    bound: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def bind(self, name: str | None, value: Any) -> "Match | None":
        """With one more binding; None when the name is already bound to something else."""
        if name is None:
            return self
        if name in self.bound:
            known = self.bound[name]
            return self if known is value or (known == value and not _is_ir(value)) else None
        return Match({**self.bound, name: value}, self.nodes)

    def through(self, node: Node) -> "Match":
        """With one more node inside."""
        return self if node in self.nodes else Match(self.bound, (*self.nodes, node))


def _is_ir(value: Any) -> bool:
    return isinstance(value, (Value, Node))


class Pattern:
    """Matches a value in a graph."""

    def match(self, value: Value, so_far: Match) -> Iterator[Match]:
        """Every way in which `value` fits, given what is bound already."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Any_(Pattern):  # noqa: N801  `Any` is typing's
    """Any value, bound to `name`. The same name twice must be the same value."""

    name: str
    where: Callable[[Value], bool] | None = None

    def match(self, value: Value, so_far: Match) -> Iterator[Match]:
        if self.where is None or self.where(value):
            bound = so_far.bind(self.name, value)
            if bound is not None:
                yield bound


@dataclass(frozen=True, eq=False)
class Numeral(Pattern):
    """A constant of any shape, through casts and views: any, bound to `name`, or the given one."""

    name: str | None = None
    value: float | int | bool | None = None

    def match(self, value: Value, so_far: Match) -> Iterator[Match]:
        known = constant_of(value)
        if known is None or (self.value is not None and known != self.value):
            return
        bound = so_far.bind(self.name, known)
        if bound is not None:
            yield bound


def constant_of(value: Value) -> float | int | bool | None:
    """The number that every element of `value` is, None when it is not a known constant."""
    node = value.node
    while node is not None and (node.op.is_renaming or node.op.is_cast):
        if node.op.is_cast and not _cast_keeps(node):
            return None
        node = node.operands[0].node
    if node is None or node.op.name != "full":
        return None
    number = node.attrs["value"]
    return float(number) if value.dtype.is_float else number


def _cast_keeps(node: Node) -> bool:
    # float constants are kept unrounded: the reference rounds each to its declared dtype anyway
    source, target = node.operands[0].dtype, node.attrs["dtype"]
    return source.is_float == target.is_float and source.kind != "bool" and target.kind != "bool"


@dataclass(frozen=True, eq=False)
class OpPattern(Pattern):
    """A result of `op` whose operands and attributes fit; `bind` names its node.

    Without operands, one of an op that takes any number of them may have any.
    """

    op: Op
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Any]
    bind: str | None = None

    def match(self, value: Value, so_far: Match) -> Iterator[Match]:
        node = value.node
        if node is None or node.op is not self.op:
            return
        is_any = self.op.is_variadic and not self.operands
        if not (is_any or len(node.operands) == len(self.operands)) or not self._attrs_fit(node):
            return
        started = so_far.bind(self.bind, node)
        if started is None:
            return
        orders = [self.operands]
        if self.op.is_commutative:
            orders.append(self.operands[::-1])
        for order in orders:
            for found in _match_all(order, node.operands, started):
                yield found.through(node)

    def _attrs_fit(self, node: Node) -> bool:
        for name, wanted in self.attrs.items():
            given = node.attrs[name]
            if not (wanted(given) if callable(wanted) else given == wanted):
                return False
        return True


def _match_all(
    patterns: tuple[Pattern, ...], values: tuple[Value, ...], so_far: Match
) -> Iterator[Match]:
    if not patterns:
        yield so_far
        return
    for found in patterns[0].match(values[0], so_far):
        yield from _match_all(patterns[1:], values[1:], found)


class OneOf(Pattern):
    """Any of several patterns, tried in order."""

    def __init__(self, *choices: Pattern):
        self.choices = choices

    def match(self, value: Value, so_far: Match) -> Iterator[Match]:
        for choice in self.choices:
            yield from choice.match(value, so_far)


def maybe_cast(inner: Pattern) -> OneOf:
    """`inner` or a cast of it."""
    return OneOf(pat.cast(inner), inner)


class _Patterns:
    """`pat.<op>(operands..., attr=value or predicate, bind="name")`."""

    def __getattr__(self, name: str) -> Callable[..., OpPattern]:
        if name.startswith("__"):
            raise AttributeError(name)
        op = get_op(name.rstrip("_"))

        def make(*operands: Pattern, bind: str | None = None, **attrs: Any) -> OpPattern:
            problem = None if op.is_variadic else op.check_arity(len(operands))
            problem = next((f"no attribute {a!r}" for a in attrs if a not in op.attrs), problem)
            if problem:
                raise ValueError(f"pattern of {op.name}: {problem}")
            return OpPattern(op, operands, attrs, bind)

        return make


pat = _Patterns()
