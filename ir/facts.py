"""What is known of dims, from the declared ranges of their symbols.

Two questions only: *proved* (true for every value in range; safe to rely on) and *hint* (a likely
value; steers cost, never correctness). There is no query that adds a guard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any, TypeAlias

from .dim import (
    Atom,
    Dim,
    DimCall,
    Expr,
    Monomial,
    Symbol,
    divide_exactly,
    evaluate,
    maximum,
    minimum,
    substitute,
    symbol,
    symbols_of,
)
from .errors import DimError

Bounds: TypeAlias = tuple[int | None, int | None]  # None is unbounded on that side

SPLITS = 4  # how many min, max and floordiv of one dim a proof takes apart
DEFAULT_HINT = 64  # for a symbol with neither hint nor upper bound


class Facts:
    """Queries over dims whose symbols are declared in `symbols`."""

    def __init__(self, symbols: Mapping[str, Symbol]):
        self.symbols = dict(symbols)
        self._bounds: dict[Expr, Bounds] = {}

    def bounds(self, dim: Dim) -> Bounds:
        """An interval that holds every value of `dim` (not always the smallest one)."""
        if isinstance(dim, int):
            return dim, dim
        if dim not in self._bounds:
            total: Bounds = (0, 0)
            for monomial, coefficient in dim.terms:
                total = plus(total, times(self._monomial(monomial), coefficient))
            self._bounds[dim] = total
        return self._bounds[dim]

    def proved_le(self, a: Dim, b: Dim) -> bool:
        """True when a <= b for every value in range; False means not proved."""
        return self._proved_nonnegative(b - a, SPLITS)

    def proved_lt(self, a: Dim, b: Dim) -> bool:
        """True when a < b for every value in range."""
        return self.proved_le(a + 1, b)

    def proved_eq(self, a: Dim, b: Dim) -> bool:
        """True when a == b always: equal as polynomials, or neither is larger."""
        return a == b or (self.proved_le(a, b) and self.proved_le(b, a))

    def proved_ne(self, a: Dim, b: Dim) -> bool:
        """True when a differs from b for every value in range."""
        return self.proved_lt(a, b) or self.proved_lt(b, a)

    def minimum(self, a: Dim, b: Dim) -> Dim:
        """min(a, b): the one that is proved to be it, where one is."""
        return a if self.proved_le(a, b) else b if self.proved_le(b, a) else minimum(a, b)

    def maximum(self, a: Dim, b: Dim) -> Dim:
        """max(a, b): the one that is proved to be it, where one is."""
        return a if self.proved_le(b, a) else b if self.proved_le(a, b) else maximum(a, b)

    def _proved_nonnegative(self, dim: Dim, splits: int) -> bool:
        """True when dim >= 0 by its interval, or with one of its calls replaced by its bound."""
        low = self.bounds(dim)[0]
        if low is not None and low >= 0:
            return True
        if isinstance(dim, int):
            return False
        if self._nonnegative_from_least(dim):
            return True
        if splits == 0:
            return False
        for monomial, coefficient in dim.terms:
            rest = dim - Expr(((monomial, coefficient),))
            for atom, power in monomial:
                if isinstance(atom, str) or power != 1:
                    continue
                factors = tuple(f for f in monomial if f[0] != atom)
                factor: Dim = Expr(((factors, 1),)) if factors else 1
                if not self.proved_le(0, factor):
                    continue
                for scale, bounds in self._bounds_of(atom, factor, is_low=coefficient > 0):
                    # dim is whole: scale * dim > -scale says that it is not negative
                    whole = rest * scale + (scale - 1)
                    totals = (whole + bound * coefficient for bound in bounds)
                    if all(self._proved_nonnegative(total, splits - 1) for total in totals):
                        return True
        return False

    def _nonnegative_from_least(self, dim: Expr) -> bool:
        """True when dim >= 0 by its interval in how far symbols are above their least values.

        Products of them lie closer so: n * t - t is (n - 1) * t.
        """
        if all(sum(power for _, power in monomial) < 2 for monomial, _ in dim.terms):
            return False
        symbols = {name: self._declared(name) for name in symbols_of(dim)}
        if not any(s.lo for s in symbols.values()):
            return False
        above = Facts({name: _from_zero(s) for name, s in symbols.items()})
        counted = substitute(dim, {name: symbol(name) + s.lo for name, s in symbols.items()})
        low = above.bounds(counted)[0]
        return low is not None and low >= 0

    def _bounds_of(
        self, call: DimCall, factor: Dim, *, is_low: bool
    ) -> Iterator[tuple[int, list[Dim]]]:
        """Ways (scale, dims): the least, or the largest, of the dims bounds scale * factor * call.

        From below if `is_low`, else from above; factor >= 0. Each way is enough for a proof.
        """
        p, k = call.args
        if call.op in ("min", "max"):
            if (call.op == "min") == is_low:  # it may be either
                yield 1, [p * factor, k * factor]
            else:  # it is at most (at least) both
                yield 1, [p * factor]
                yield 1, [k * factor]
            return
        if not self.proved_le(1, k):
            return
        if call.op == "mod":  # 0 to k - 1, and no more than p
            if is_low:
                yield 1, [0]
                return
            yield 1, [(k - 1) * factor]
            if self.proved_le(0, p):
                yield 1, [p * factor]
            return
        # k * floordiv(p, k) is p less a remainder of 0 to k - 1
        lost = k - 1 if is_low else 0
        if isinstance(k, int):
            yield k, [(p - lost) * factor]
        elif (others := divide_exactly(factor, k)) is not None:
            yield 1, [(p - lost) * others]
        elif self.proved_le(0, p):
            yield 1, [0 if is_low else p * factor]

    def proved_multiple(self, dim: Dim, k: int) -> bool:
        """True when k divides `dim` for every value in range."""
        return self.multiple(dim) % k == 0

    def multiple(self, dim: Dim) -> int:
        """The largest divisor of `dim` that we can prove; 0 for the dim 0."""
        if isinstance(dim, int):
            return abs(dim)
        result = 0
        for monomial, coefficient in dim.terms:
            factor = abs(coefficient)
            for atom, power in monomial:
                if isinstance(atom, str):
                    factor *= self._declared(atom).multiple ** power
            result = gcd(result, factor)
        return result

    def fits_32_bits(self, dim: Dim) -> bool:
        """Whether no sum of terms of `dim` leaves 32 bits, whatever the order of adding them."""
        if isinstance(dim, int):
            return abs(dim) < 2**31
        total = 0
        for monomial, coefficient in dim.terms:
            size = abs(coefficient)
            for atom, power in monomial:
                low, high = self._atom(atom)
                if low is None or high is None:
                    return False
                if isinstance(atom, DimCall) and not all(map(self.fits_32_bits, atom.args)):
                    return False
                size *= max(abs(low), abs(high)) ** power
            total += size
        return total < 2**31

    def hint(self, dim: Dim) -> int:
        """A likely value of `dim`."""
        return evaluate(dim, {name: self._hint(name) for name in symbols_of(dim)})

    def _hint(self, name: str) -> int:
        symbol = self._declared(name)
        if symbol.hint is not None:
            return symbol.hint
        wish = max(symbol.lo, DEFAULT_HINT)
        return wish if symbol.hi is None else min(symbol.hi, wish)

    def _declared(self, name: str) -> Symbol:
        if name not in self.symbols:
            raise DimError(
                f"symbol {name!r} is not declared",
                facts=f"declared: {', '.join(self.symbols) or 'none'}",
                fix=f"declare it: dim {name} in [1, ]",
            )
        return self.symbols[name]

    def _monomial(self, monomial: Monomial) -> Bounds:
        result: Bounds = (1, 1)
        for atom, power in monomial:
            for _ in range(power):
                result = _multiply(result, self._atom(atom))
        return result

    def _atom(self, atom: Atom) -> Bounds:
        if isinstance(atom, str):
            symbol = self._declared(atom)
            return symbol.lo, symbol.hi
        return self._call(atom)

    def _call(self, call: DimCall) -> Bounds:
        (a_low, a_high), (b_low, b_high) = (self.bounds(arg) for arg in call.args)
        if call.op == "min":
            return of_all((a_low, b_low), min), of_known((a_high, b_high), min)
        if call.op == "max":
            return of_known((a_low, b_low), max), of_all((a_high, b_high), max)
        if b_low is None or b_low <= 0:
            return None, None
        if call.op == "mod":
            largest = a_high if a_low is not None and a_low >= 0 else None
            return 0, of_known((None if b_high is None else b_high - 1, largest), min)

        def quotients(a: int) -> tuple[int, int]:
            """By the least and by the largest divisor, which may have no bound."""
            return a // b_low, (-1 if a < 0 else 0) if b_high is None else a // b_high

        low = None if a_low is None else min(quotients(a_low))
        return low, None if a_high is None else max(quotients(a_high))


def _from_zero(symbol: Symbol) -> Symbol:
    """What a symbol is above its least value, under its name."""
    return Symbol(symbol.name, 0, None if symbol.hi is None else symbol.hi - symbol.lo)


# ---- intervals -----------------------------------------------------------------------------

Ends: TypeAlias = tuple[Any, Any]  # numbers or dims; None is no bound


def plus(a: Ends, b: Ends) -> Ends:
    """Between which sums lie."""
    low = None if a[0] is None or b[0] is None else a[0] + b[0]
    return low, None if a[1] is None or b[1] is None else a[1] + b[1]


def times(a: Ends, k: int) -> Ends:
    """Between which multiples lie."""
    low, high = a if k > 0 else (a[1], a[0])
    return None if low is None else low * k, None if high is None else high * k


def of_all(ends: Sequence[Any], pick: Callable[..., Any]) -> Any:
    """The one that `pick` takes, None where one of them is unbounded."""
    return None if None in ends else pick(*ends)


def of_known(ends: Sequence[Any], pick: Callable[..., Any]) -> Any:
    """The one that `pick` takes of those that are bounds."""
    known = [end for end in ends if end is not None]
    return pick(*known) if len(known) > 1 else next(iter(known), None)


def _multiply(a: Bounds, b: Bounds) -> Bounds:
    if a == (1, 1):
        return b
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        high = None if a[1] is None or b[1] is None else a[1] * b[1]
        return a[0] * b[0], high
    if None in (*a, *b):
        return None, None
    corners = [x * y for x in a for y in b if x is not None and y is not None]
    return min(corners), max(corners)
