"""Dims as C++ expressions of 64-bit integers."""

from collections.abc import Sequence

from ...ir.dim import Dim, DimCall

PREFIX = "v_"  # before every symbol's name, so that none is a word of C++


def name(symbol_name: str) -> str:
    """The C++ variable of a symbol, an axis or an indirect index."""
    return PREFIX + symbol_name


def given(symbols: Sequence[str]) -> list[str]:
    """The values of a kernel's symbols, which a function gets in `d`, as variables."""
    return [f"const int64_t {name(symbol)} = d[{i}];" for i, symbol in enumerate(symbols)]


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


def _atom(atom: str | DimCall) -> str:
    if isinstance(atom, str):
        return name(atom)
    function = {"floordiv": "tw_fdiv", "mod": "tw_fmod", "min": "tw_lesser", "max": "tw_greater"}
    return f"{function[atom.op]}({', '.join(text(a) for a in atom.args)})"
