"""Dims: integer polynomials over declared symbols, in one canonical form.

Invariant: a constant dim is a Python `int`; anything else is an `Expr`, kept expanded and sorted,
so two dims that are equal as polynomials are equal as objects. Division, remainder, minimum and
maximum of things that do not simplify are opaque atoms of the polynomial.
"""

from __future__ import annotations  # the type of a dim refers to itself

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TypeAlias


@dataclass(frozen=True)
class Symbol:
    """A declared symbol: every value it takes is in [lo, hi] and divisible by `multiple`."""

    name: str
    lo: int = 1
    hi: int | None = None
    multiple: int = 1
    hint: int | None = None  # a likely value: steers schedules, never correctness

    @property
    def span(self) -> str:
        """Its range as text, `[1, 8]`; `[1, ]` where it has no bound."""
        return f"[{self.lo}, {'' if self.hi is None else self.hi}]"


@dataclass(frozen=True)
class DimCall:
    """floordiv, mod, min or max of two dims: an atom."""

    op: str
    args: tuple[Dim, Dim]

    def __str__(self) -> str:
        a, b = self.args
        sign = {"floordiv": "//", "mod": "%"}.get(self.op)
        return f"{self.op}({a}, {b})" if sign is None else f"({a}){sign}{_divisor(b)}"


class Expr:
    """A non-constant integer polynomial. Build with `symbol()` and Python operators."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self):
        return Expr, (self.terms,)  # each process hashes text in its own way

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        return _from_terms(_terms(self) + _terms(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return other + self * -1

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __str__(self) -> str:
        if self._text is None:
            self._text = _sum_text(self)
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __bool__(self) -> bool:
        raise TypeError(f"dim {self} has no truth value: ask Facts.proved_* or compare with ==")


Dim: TypeAlias = int | Expr
Atom: TypeAlias = str | DimCall
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]  # ((atom, power), ...), by the atom's text


def symbol(name: str) -> Expr:
    """The dim that is the symbol `name`. The only way to make one."""
    if not name.isidentifier() or name in ("min", "max"):
        raise ValueError(f"{name!r} is not a name for a symbol")
    return atom_dim(name)


def atom_dim(atom: Atom) -> Expr:
    """The dim that is an atom of other dims: a symbol, or a call as it stands."""
    return Expr(((((atom, 1),), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """The quotient rounded towards minus infinity; exact parts are divided out."""
    if b == 1:
        return a
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int):
        # (b*p + r) // b == p + r // b holds for every integer p and r; of a number r is its rest
        whole = [(m, c // b) for m, c in _terms(a) if c % b == 0 or (not m and c // b)]
        rest = [(m, c if m else c % b) for m, c in _terms(a) if c % b]
        if not rest:
            return _from_terms(whole)
        if whole:
            return _from_terms(whole) + floordiv(_from_terms(rest), b)
        common = gcd(b, *(c for _, c in rest))
        if common > 1:
            return floordiv(_from_terms([(m, c // common) for m, c in rest]), b // common)
        number = sum(c for m, c in rest if not m)
        atom = _atom_of(a - number)  # (x // p + n) // q == (x + n*p) // (p*q)
        if isinstance(atom, DimCall) and atom.op == "floordiv" and isinstance(atom.args[1], int):
            return floordiv(atom.args[0] + number * atom.args[1], atom.args[1] * b)
    else:
        exact = divide_exactly(a, b)
        if exact is not None:
            return exact
    return atom_dim(DimCall("floordiv", (a, b)))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """The quotient rounded up, for b > 0."""
    return floordiv(a + b - 1, b)


def mod(a: Dim, b: Dim) -> Dim:
    """a - b * (a // b)."""
    if b == 1:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(b, int):
        _, rest = divided(a, b)
        if isinstance(rest, int):
            return rest
        return atom_dim(DimCall("mod", (rest, b)))
    if divide_exactly(a, b) is not None:
        return 0
    return atom_dim(DimCall("mod", (a, b)))


def divided(a: Dim, b: int) -> tuple[Dim, Dim]:
    """(q, r): a == q * b + r, term by term: the factors of r's terms are in [0, b)."""
    terms = _terms(a)
    return _from_terms([(m, c // b) for m, c in terms]), _from_terms([(m, c % b) for m, c in terms])


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of two dims."""
    return _extremum("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of two dims."""
    return _extremum("max", a, b)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 when there are none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def symbols_of(dim: Dim) -> frozenset[str]:
    """Names of the symbols in `dim`."""
    return frozenset() if isinstance(dim, int) else _symbols_of(dim)


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """`dim` with symbols replaced; names missing from `values` stay."""
    if isinstance(dim, int) or not (symbols_of(dim) & values.keys()):
        return dim

    def replaced(atom: Atom) -> Dim:
        if isinstance(atom, str):
            return values[atom] if atom in values else symbol(atom)
        return CALLS[atom.op](*(substitute(arg, values) for arg in atom.args))

    return map_atoms(dim, replaced)


def map_atoms(dim: Dim, replaced: Callable[[Atom], Dim]) -> Dim:
    """`dim` with each of its symbols and calls replaced by a dim; what is inside calls is not."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom, power in monomial:
            factor = replaced(atom)
            for _ in range(power):
                term = term * factor
        total = total + term
    return total


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The number `dim` is under `values`; KeyError names a symbol that has none."""
    result = substitute(dim, values)
    if isinstance(result, int):
        return result
    raise KeyError(", ".join(sorted(symbols_of(result))))


def compile_dims(dims: Iterable[Dim], names: Iterable[str]) -> Callable[..., tuple[int, ...]]:
    """A Python function of the symbols `names` (positional ints) that returns all `dims`.

    The source is made from our own expressions, never from text of a file.
    """
    body = ", ".join(map(str, dims))  # the text of a dim is also a Python expression
    scope: dict[str, object] = {"min": min, "max": max}
    exec(f"def bind({', '.join(names)}):\n    return ({body}{',' if body else ''})\n", scope)  # noqa: S102  # our own text
    return scope["bind"]  # type: ignore[return-value]


# ---- canonical form ------------------------------------------------------------------------


def _terms(dim: Dim) -> list[tuple[Monomial, int]]:
    if isinstance(dim, int):
        return [((), dim)] if dim else []
    return list(dim.terms)


def _key(monomial: Monomial) -> tuple[int, str]:
    # higher degree first, then by text: the order in which terms print
    return -sum(p for _, p in monomial), "*".join(f"{a}^{p}" for a, p in monomial)


def _from_terms(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Expr(tuple(sorted(kept, key=lambda term: _key(term[0]))))


@lru_cache(maxsize=65536)
def _product(a: Expr, b: Dim) -> Dim:
    return _from_terms([(_merge(m, n), c * d) for m, c in _terms(a) for n, d in _terms(b)])


def _merge(a: Monomial, b: Monomial, sign: int = 1) -> Monomial:
    """The product of two monomials, or, with -1 as `sign`, the quotient."""
    powers: dict[Atom, int] = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + sign * power
    return tuple(sorted(((x, p) for x, p in powers.items() if p), key=lambda pair: str(pair[0])))


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """a / b when b is a single term that divides every term of a."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return 1 if a == b else None
    (monomial, coefficient) = divisor[0]
    quotient = []
    for m, c in _terms(a):
        divided = _merge(m, monomial, -1)
        if c % coefficient or any(power < 0 for _, power in divided):
            return None
        quotient.append((divided, c // coefficient))
    return _from_terms(quotient)


def _extremum(op: str, a: Dim, b: Dim) -> Dim:
    """Nested extrema are one set of dims, distinct and in order, so that equal sets are equal."""
    leaves: list[Dim] = []
    for leaf in (*_leaves(op, a), *_leaves(op, b)):
        for i, other in enumerate(leaves):
            difference = leaf - other
            if isinstance(difference, int):
                leaves[i] = leaf if (difference < 0) == (op == "min") else other
                break
        else:
            leaves.append(leaf)
    leaves.sort(key=str)
    total = leaves[0]
    for leaf in leaves[1:]:
        total = atom_dim(DimCall(op, (total, leaf)))
    return total


def _leaves(op: str, dim: Dim) -> tuple[Dim, ...]:
    """What an extremum is taken of; a dim that is none is its own only leaf."""
    atom = _atom_of(dim)
    if isinstance(atom, DimCall) and atom.op == op:
        return tuple(leaf for arg in atom.args for leaf in _leaves(op, arg))
    return (dim,)


def _atom_of(dim: Dim) -> Atom | None:
    """The symbol or call that a dim is, None where it is more than that."""
    if isinstance(dim, Expr) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    return None


CALLS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
}


@lru_cache(maxsize=65536)
def _symbols_of(dim: Expr) -> frozenset[str]:
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for atom, _ in monomial:
            if isinstance(atom, str):
                names.add(atom)
            else:
                names.update(*(symbols_of(arg) for arg in atom.args))
    return frozenset(names)


# ---- text ----------------------------------------------------------------------------------


def _divisor(dim: Dim) -> str:
    text = str(dim)
    is_bare = dim >= 0 if isinstance(dim, int) else isinstance(_atom_of(dim), str)
    return text if is_bare else f"({text})"


def _sum_text(dim: Expr) -> str:
    text = ""
    for monomial, coefficient in dim.terms:
        factors = [_factor(atom) for atom, power in monomial for _ in range(power)]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        text += (" - " if coefficient < 0 else " + ") + "*".join(factors)
    return ("-" if text.startswith(" - ") else "") + text[3:]


def _factor(atom: Atom) -> str:
    return str(atom) if isinstance(atom, str) or atom.op in ("min", "max") else f"({atom})"
