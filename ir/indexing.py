"""Index arithmetic of views: how an index of a value becomes an index of what it is a view of."""

from collections.abc import Mapping, Sequence

from .dim import (
    Call,
    Dim,
    Expr,
    Symbol,
    divide_exactly,
    floordiv,
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
    if facts.proved_le(0, rest) and facts.proved_lt(rest, b):
        return quotient, rest
    return quotient + floordiv(rest, b), mod(rest, b)


def recombine(dim: Dim) -> Dim:
    """b * (x // b) + x % b becomes x, where writing remainders as x - b * (x // b) cancels."""
    if isinstance(dim, int):
        return dim
    while calls := [c for c in _calls(dim) if c.op == "mod"]:
        for call in calls:
            x, b = call.args
            replaced = _replace_atom(dim, call, x - b * floordiv(x, b))
            if _num_calls(replaced) < _num_calls(dim):
                dim = replaced
                break
        else:
            return dim
        if isinstance(dim, int):
            return dim
    return dim


def coefficient_of(dim: Dim, name: str) -> Dim | None:
    """c when dim is c * name + (terms without name); None when it is not of that form."""
    if isinstance(dim, int):
        return 0
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        powers = dict(monomial)
        if any(isinstance(a, Call) and name in _symbols_of_call(a) for a in powers):
            return None
        power = powers.pop(name, 0)
        if power > 1:
            return None
        if power == 1:
            rest: Dim = coefficient
            for atom, count in powers.items():
                factor = symbol(atom) if isinstance(atom, str) else Expr(((((atom, 1),), 1),))
                for _ in range(count):
                    rest = rest * factor
            total = total + rest
    return total


def _symbols_of_call(call: Call) -> frozenset[str]:
    return frozenset().union(*(symbols_of(a) for a in call.args))


def _calls(dim: Expr) -> list[Call]:
    return [atom for monomial, _ in dim.terms for atom, _ in monomial if isinstance(atom, Call)]


def _num_calls(dim: Dim) -> int:
    return 0 if isinstance(dim, int) else len(_calls(dim))


def _replace_atom(dim: Expr, old: Call, new: Dim) -> Dim:
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom, power in monomial:
            if atom == old:
                factor = new
            else:
                factor = symbol(atom) if isinstance(atom, str) else Expr(((((atom, 1),), 1),))
            for _ in range(power):
                term = term * factor
        total = total + term
    return total


class AxisFacts(Facts):
    """Facts that also know axis < extent, which ranges alone lose when the extent is symbolic."""

    def __init__(
        self,
        symbols: Mapping[str, Symbol],
        axes: Mapping[str, Symbol],
        extents: Mapping[str, Dim],
    ):
        super().__init__({**symbols, **axes})
        self.extents = extents

    def proved_lt(self, a: Dim, b: Dim) -> bool:
        """a < b for every value in range; an axis is replaced by its extent less one."""
        if super().proved_lt(a, b):
            return True
        return super().proved_lt(self._highest(a), b)

    def _highest(self, a: Dim) -> Dim:
        for name in symbols_of(a) & self.extents.keys():
            factor = coefficient_of(a, name)
            if factor is not None and self.proved_le(0, factor):
                a = substitute(a, {name: self.extents[name] - 1})
        return a
