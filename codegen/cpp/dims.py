"""Dims as C++ expressions of 64-bit integers."""

from collections.abc import Mapping

from ...ir.dim import CALLS, Call, Dim, Expr, substitute, symbol, symbols_of

Range = tuple[int, int]  # both ends included

PREFIX = "v_"  # before every symbol's name, so that none is a word of C++


def name(symbol_name: str) -> str:
    """The C++ variable of a symbol, an axis or an indirect index."""
    return PREFIX + symbol_name


def text(dim: Dim) -> str:
    """`dim` as a C++ expression, safe as an operand of anything."""
    if isinstance(dim, int):
        return str(dim) if dim >= 0 else f"({dim})"
    terms = [_term(monomial, coefficient) for monomial, coefficient in dim.terms]
    return terms[0] if len(terms) == 1 and terms[0].isidentifier() else f"({' + '.join(terms)})"


def _term(monomial, coefficient: int) -> str:
    factors = [_atom(atom) for atom, power in monomial for _ in range(power)]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient) if coefficient >= 0 else f"({coefficient})")
    return "*".join(factors)


def _atom(atom: str | Call) -> str:
    if isinstance(atom, str):
        return name(atom)
    function = {"floordiv": "tw_fdiv", "mod": "tw_fmod", "min": "tw_lesser", "max": "tw_greater"}
    return f"{function[atom.op]}({', '.join(text(a) for a in atom.args)})"


def split(dim: Dim, axis: str) -> tuple[Dim, Dim]:
    """(the terms of `dim` without `axis`, those with it)."""
    if isinstance(dim, int):
        return dim, 0
    without = tuple(t for t in dim.terms if axis not in symbols_of(Expr((t,))))
    within = tuple(t for t in dim.terms if axis in symbols_of(Expr((t,))))
    return _sum(without), _sum(within)


def coefficient(dim: Dim, axis: str) -> Dim | None:
    """c where `dim` is c * axis + rest and neither c nor rest depends on axis; None otherwise."""
    rest = substitute(dim, {axis: 0})
    factor = substitute(dim, {axis: 1}) - rest
    if axis in symbols_of(factor) or axis in symbols_of(rest):
        return None
    return factor if rest + factor * symbol(axis) == dim else None


def _sum(terms) -> Dim:
    total: Dim = 0
    for monomial, c in terms:
        if monomial:
            total = total + Expr(((monomial, c),))
        else:
            total = total + c
    return total


def bounds(dim: Dim, ranges: Mapping[str, Range]) -> Range | None:
    """Values between which `dim` lies; None when a symbol has no known range."""
    if isinstance(dim, int):
        return dim, dim
    lo = hi = 0
    for monomial, c in dim.terms:
        term = (c, c)
        for atom, power in monomial:
            factor = ranges.get(atom) if isinstance(atom, str) else _call_bounds(atom, ranges)
            if factor is None:
                return None
            for _ in range(power):
                ends = [a * b for a in term for b in factor]
                term = min(ends), max(ends)
        lo, hi = lo + term[0], hi + term[1]
    return lo, hi


def _call_bounds(call: Call, ranges: Mapping[str, Range]) -> Range | None:
    a, b = (bounds(arg, ranges) for arg in call.args)
    if a is None or b is None:
        return None
    if call.op in ("min", "max"):
        pick = min if call.op == "min" else max
        return pick(a[0], b[0]), pick(a[1], b[1])
    if b[0] != b[1] or b[0] <= 0:
        return None
    low, high = a[0] // b[0], a[1] // b[0]
    if call.op == "floordiv":
        return low, high
    return (a[0] % b[0], a[1] % b[0]) if low == high else (0, b[0] - 1)


def simplify(dim: Dim, ranges: Mapping[str, Range]) -> Dim:
    """`dim` without the divisions and remainders that the ranges decide."""
    if isinstance(dim, int) or not any(
        isinstance(atom, Call) for monomial, _ in dim.terms for atom, _ in monomial
    ):
        return dim
    total: Dim = 0
    for monomial, c in dim.terms:
        term: Dim = c
        for atom, power in monomial:
            factor = symbol(atom) if isinstance(atom, str) else _simplify_call(atom, ranges)
            for _ in range(power):
                term = term * factor
        total = total + term
    return total


def _simplify_call(call: Call, ranges: Mapping[str, Range]) -> Dim:
    a, b = (simplify(arg, ranges) for arg in call.args)
    known, divisor = bounds(a, ranges), b
    if known is not None and isinstance(divisor, int) and call.op in ("floordiv", "mod"):
        quotient = known[0] // divisor
        if quotient == known[1] // divisor:
            return quotient if call.op == "floordiv" else a - divisor * quotient
    return CALLS[call.op](a, b)
