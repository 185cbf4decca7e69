"""Ranges of dims that a model's shapes take for granted, found from sizes that do not go together.

A size such as min(512, s), beside s where both must be equal, says that s is at most 512: no larger
one could run. In the same way (s - 1)//32 says that s is a multiple of 32 where only then two ways
through the model meet. A program for that range is for nearly all calls; the rest get their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import lcm

from ...ir.dim import Dim, DimCall, Expr, Symbol, symbol, symbols_of

MAX_MULTIPLE = 4096


def narrowed(dims: Iterable[Dim], symbols: Mapping[str, Symbol]) -> Symbol | None:
    """A symbol with a range under which some of the dims are simpler; None where there is none."""
    calls = [call for dim in dims for call in _calls(dim)]
    for call in calls:
        for limit, other in (call.args, call.args[::-1]):
            name = _name(other)
            if isinstance(limit, int) and name in symbols and symbols[name].multiple == 1:
                known = symbols[name]
                if call.op == "min" and known.lo <= limit and not _is_within(known, limit):
                    return replace(known, hi=limit)
                if call.op == "max" and known.lo < limit and (known.hi or limit) >= limit:
                    return replace(known, lo=limit)
    steps: dict[str, int] = {}
    for call in calls:
        names = symbols_of(call.args[0])
        if call.op == "floordiv" and isinstance(call.args[1], int) and len(names) == 1:
            (name,) = names
            steps[name] = lcm(steps.get(name, 1), call.args[1])
    for name, step in steps.items():
        if name in symbols and step <= MAX_MULTIPLE and symbols[name].multiple % step:
            return replace(symbols[name], multiple=lcm(symbols[name].multiple, step))
    return None


def _is_within(known: Symbol, limit: int) -> bool:
    return known.hi is not None and known.hi <= limit


def _name(dim: Dim) -> str:
    """The symbol that a dim is; the empty name for any other."""
    names = symbols_of(dim)
    name = next(iter(names), "")
    return name if len(names) == 1 and dim == symbol(name) else ""


def _calls(dim: Dim) -> Iterator[DimCall]:
    """Every call in a dim, those in others' arguments too."""
    if isinstance(dim, Expr):
        for monomial, _ in dim.terms:
            for atom, _ in monomial:
                if isinstance(atom, DimCall):
                    yield atom
                    for argument in atom.args:
                        yield from _calls(argument)
