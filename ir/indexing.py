"""Index arithmetic of views: how an index of a value becomes an index of what it is a view of."""

from collections.abc import Mapping, Sequence

from .dim import (
    CALLS,
    Atom,
    Dim,
    DimCall,
    Expr,
    Symbol,
    atom_dim,
    divide_exactly,
    floordiv,
    map_atoms,
    mod,
    substitute,
    symbol,
    symbols_of,
)
from .facts import Facts
from .types import TensorType


def strides_of(shape: Sequence[Dim]) -> list[Dim]:
    """Row-major strides, in elements."""
    strides: list[Dim] = []
    total: Dim = 1
    for dim in reversed(shape):
        strides.append(total)
        total = total * dim
    return strides[::-1]


def broadcast_index(index: Sequence[Dim], type: TensorType) -> tuple[Dim, ...]:
    """The index of an operand of `type` for an index of the broadcast result."""
    tail = index[len(index) - type.rank :]
    return tuple(0 if dim == 1 else at for at, dim in zip(tail, type.shape))


def replaced(index: Sequence[Dim], axis: int, at: Dim, count: int = 1) -> tuple[Dim, ...]:
    """`index` with `at` in the place of `count` axes from `axis`."""
    return (*index[:axis], at, *index[axis + count :])


def linearize(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The row-major offset of `index`; quotients and remainders that cancel are put together."""
    total: Dim = 0
    for i, (at, stride) in enumerate(zip(index, strides_of(shape), strict=True)):
        if shape[i] != 1:
            total = total + at * stride
    return recombine(total)


def delinearize(offset: Dim, shape: Sequence[Dim], facts: Facts) -> tuple[Dim, ...]:
    """The index whose row-major offset is `offset`."""
    index: list[Dim] = []
    for axis in range(len(shape) - 1, -1, -1):
        if axis == 0 or all(d == 1 for d in shape[:axis]):
            index.append(offset)  # what is left is inside the outermost axis
            index += [0] * axis
            break
        offset, rest = divmod_dim(offset, shape[axis], facts)
        index.append(rest)
    return tuple(reversed(index))


def divmod_dim(a: Dim, b: Dim, facts: Facts) -> tuple[Dim, Dim]:
    """a // b and a % b, simplified by what is known of ranges."""
    if b == 1:
        return a, 0
    if b == 0:
        return 0, 0  # of an axis without elements: no index is ever asked for
    if facts.proved_le(0, a) and facts.proved_lt(a, b):
        return 0, a
    quotient: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in a.terms if isinstance(a, Expr) else ():
        term = Expr(((monomial, coefficient),)) if monomial else coefficient
        divided = divide_exactly(term, b)
        if divided is None:
            rest = rest + term
        else:
            quotient = quotient + divided
    if isinstance(a, int):
        rest = a
    # a multiple of b that was divided out may be what kept the rest from below 0
    for whole in (0, -1):
        if facts.proved_le(b * whole, rest) and facts.proved_lt(rest, b * whole + b):
            return quotient + whole, rest - b * whole
    low, high = facts.bounds(rest)
    if isinstance(b, int) and low is not None and high is not None and low // b == high // b:
        return quotient + low // b, rest - b * (low // b)
    return quotient + floordiv(rest, b), mod(rest, b)


def recombine(dim: Dim) -> Dim:
    """b * (x // b) + x % b becomes x, where writing remainders as x - b * (x // b) cancels.

    One remainder by itself, or all of them together: quotients of quotients cancel across.
    """
    while calls := [c for c in calls_of(dim) if c.op == "mod"]:
        for chosen in (*((call,) for call in calls), calls):
            replaced = _without_remainders(dim, chosen)
            if len(calls_of(replaced)) < len(calls_of(dim)):
                dim = replaced
                break
        else:
            return dim
    return dim


def _without_remainders(dim: Dim, remainders: Sequence[DimCall]) -> Dim:
    def written(atom: Atom) -> Dim:
        if isinstance(atom, str) or atom not in remainders:
            return atom_dim(atom)
        x, b = atom.args
        return x - b * floordiv(x, b)

    return map_atoms(dim, written)


def coefficient_of(dim: Dim, name: str) -> Dim | None:
    """c when dim is c * name + (terms without name); None when it is not of that form."""
    if name not in symbols_of(dim):
        return 0
    rest = substitute(dim, {name: 0})
    factor = substitute(dim, {name: 1}) - rest
    return factor if rest + factor * symbol(name) == dim else None


def simplified(dim: Dim, facts: Facts) -> Dim:
    """`dim` without the divisions and remainders that are decided by what is known of ranges."""

    def decided(atom: Atom) -> Dim:
        if isinstance(atom, str):
            return symbol(atom)
        a, b = (simplified(arg, facts) for arg in atom.args)
        if atom.op in ("floordiv", "mod"):
            return divmod_dim(a, b, facts)[atom.op == "mod"]
        return CALLS[atom.op](a, b)

    return map_atoms(dim, decided) if calls_of(dim) else dim


def calls_of(dim: Dim) -> list[DimCall]:
    """The calls among the factors of its terms; what is inside calls is not."""
    terms = () if isinstance(dim, int) else dim.terms
    return [atom for monomial, _ in terms for atom, _ in monomial if isinstance(atom, DimCall)]


class AxisFacts(Facts):
    """Facts over symbols and axes: an axis is below its extent, also where that is symbolic.

    Any other name is an index that was looked up: 0 or more.
    """

    def __init__(self, symbols: Mapping[str, Symbol], extents: Mapping[str, Dim] = {}):
        super().__init__(symbols)
        self.extents: dict[str, Dim] = {}
        for name, extent in extents.items():
            self.declare(name, extent)

    def declare(self, name: str, extent: Dim) -> None:
        """Make an axis known."""
        high = self.bounds(extent)[1]
        self.symbols[name] = Symbol(name, 0, None if high is None else max(high - 1, 0))
        self.extents[name] = extent
        self._bounds.clear()

    def narrowed(self, name: str, low: int, high: int | None) -> "AxisFacts":
        """The same of all others, and an axis within [low, high]."""
        facts = AxisFacts({**self.symbols, name: Symbol(name, low, high)})
        facts.extents = self.extents
        return facts

    def proved_lt(self, a: Dim, b: Dim) -> bool:
        """a < b for every value in range; an axis is replaced by its extent less one."""
        return super().proved_lt(a, b) or super().proved_lt(self.ends(a)[1], b)

    def ends(self, dim: Dim) -> tuple[Dim, Dim]:
        """The least and the largest of `dim` over axes; one in which it is not linear stays."""
        low = high = dim
        for name in symbols_of(dim) & self.extents.keys():
            factor, last = coefficient_of(dim, name), self.extents[name] - 1
            if factor is None:
                continue
            if self.proved_le(0, factor):
                low, high = substitute(low, {name: 0}), substitute(high, {name: last})
            elif self.proved_le(factor, 0):
                low, high = substitute(low, {name: last}), substitute(high, {name: 0})
        return low, high

    def _declared(self, name: str) -> Symbol:
        return self.symbols.get(name) or Symbol(name, 0)
