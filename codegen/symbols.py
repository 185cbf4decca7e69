"""Which graph symbols a kernel's parts mention: its integer arguments."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ..ir.dim import Expr, symbols_of
from .loops import Axis, Index, Load, Part, Select, Store


def kernel_symbols(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Names of graph symbols in `parts`, sorted; axes and indirect indices are not among them."""
    names: set[str] = set()
    bound: set[str] = set()
    for item in walk(parts):
        if isinstance(item, Expr):
            names |= symbols_of(item)
        elif isinstance(item, Axis):
            bound.add(item.name)
        elif isinstance(item, (Index, Load, Select, Store)):
            bound |= {name for name, _ in item.indirect}
    return tuple(sorted(names - bound))


def walk(item: Any) -> Iterator[Any]:
    """Every dataclass and dim inside `item`, each distinct object once."""
    seen: set[int] = set()
    stack = [item]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(current)
        elif isinstance(current, Expr):
            yield current
        elif is_dataclass(current) and id(current) not in seen:
            seen.add(id(current))
            yield current
            stack.extend(getattr(current, f.name) for f in fields(current))
