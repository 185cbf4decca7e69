"""The innermost loop of a part: a vectorisable sweep over one axis, free of conditions.

A Select on the swept axis cuts its range; one that does not depend on it becomes an `if` around the
loop. What is left (conditions through division, or too many) is decided element by element.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from ...ir.dim import (
    CALLS,
    Atom,
    Dim,
    DimCall,
    Expr,
    ceildiv,
    floordiv,
    map_atoms,
    mod,
    substitute,
    symbol,
    symbols_of,
)
from ...ir.indexing import calls_of, coefficient_of
from ...ir.types import DType
from ..elements import children, mapped, walk
from ..loops import Element, Load, Select, Store
from . import dims
from .elements import Scope
from .scalars import convert

MAX_CUTS = 4  # each doubles the code


@dataclass(frozen=True)
class Sink:
    """What a sweep writes: elements it reads, how one point is written, a guard."""

    elements: tuple[Element, ...]
    write: Callable[[Scope], None]
    over: Callable[[Callable[[Dim], Dim]], "Sink"]  # the same sink, its dims rewritten
    guard: Element | None = None


def store_sink(store: Store) -> Sink:
    """The sink of a plain store."""
    inner = tuple(element for _, element in store.indirect)

    def over(dim: Callable[[Dim], Dim]) -> Sink:
        def of(element: Element) -> Element:
            return mapped(element, lambda e: e, dim)

        return store_sink(
            replace(
                store,
                offset=dim(store.offset),
                value=of(store.value),
                indirect=tuple((name, of(element)) for name, element in store.indirect),
                guard=None if store.guard is None else of(store.guard),
            )
        )

    return Sink((store.value, *inner), lambda scope: scope.store(store), over, store.guard)


def buffer_sink(place: str, element: Element, dtype: DType) -> Sink:
    """`place`, of a buffer of `dtype`, = the element."""

    def write(scope: Scope, element: Element) -> None:
        value = convert(scope.emit(element), scope.decided(element).dtype, dtype)
        scope.write(f"{place} = {value};")

    return value_sink(element, write)


def value_sink(element: Element, write: Callable[[Scope, Element], None]) -> Sink:
    """What `write` does with the element."""
    return Sink(
        (element,),
        lambda scope: write(scope, element),
        lambda dim: value_sink(mapped(element, lambda e: e, dim), write),
    )


def sweep(scope: Scope, axis: str, lo: str, hi: str, sinks: Sequence[Sink]) -> None:
    """for axis in [lo, hi): the sinks. One loop for each distinct guard.

    Where loads wrap around along the axis (an axis that is several axes of a view), each run
    between is swept by itself.
    """
    sinks = [sink.over(lambda dim: _joined(dim, axis)) for sink in sinks]
    width = _run(axis, [e for sink in sinks for e in sink.elements])
    if width is None:
        _sweep(scope, axis, lo, hi, sinks)
        return
    run, place = f"{axis}_run", f"{axis}_in"
    scope.axes |= {run, place}
    scope.facts.declare(run, ceildiv(scope.facts.extents[axis], width))
    scope.facts.declare(place, width)
    parted = [sink.over(lambda dim: _parted(dim, axis, width, run, place)) for sink in sinks]
    are_whole = lo == "0" and hi.isdigit() and int(hi) % width == 0
    first, last = f"({lo}) / {width}", f"(({hi}) + {width - 1}) / {width}"
    with scope.loop(run, first, last):
        before, start, stop = scope.fresh("before"), "0", str(width)
        scope.write(f"const int64_t {before} = {dims.name(run)} * {width};")
        if not are_whole:
            start, stop = scope.fresh("start"), scope.fresh("stop")
            scope.write(
                f"const int64_t {start} = tw_greater(({lo}) - {before}, 0);",
                f"const int64_t {stop} = tw_lesser(({hi}) - {before}, {width});",
            )
        whole = (axis, f"{before} + {dims.name(place)}")
        _sweep(scope, place, start, stop, parted, whole)


def _run(axis: str, elements: Sequence[Element]) -> int | None:
    """The length of the runs of an axis between the places where loads wrap around; None: no such.

    Every quotient by which the axis is divided is one number all through a run.
    """
    loads = [item for e in elements for item in walk(e) if isinstance(item, Load)]
    if not any(_wraps(load.offset, axis) for load in loads):
        return None
    divisors = {
        c.args[1]
        for e in elements
        for item in walk(e)
        if isinstance(item, Expr)
        for c in _calls(item)
        if c.args[0] == symbol(axis) and c.op in ("mod", "floordiv")
    }
    if not all(isinstance(divisor, int) for divisor in divisors):
        return None
    width = gcd(*divisors)
    return width if width > 1 else None


def _joined(dim: Dim, axis: str) -> Dim:
    """axis % c + c * (axis // c % d)  ->  axis % (c * d), in multiples: a longer run."""
    whole = symbol(axis)
    rests = {
        (call.args[0], call.args[1]): factor
        for monomial, factor in (() if isinstance(dim, int) else dim.terms)
        for call, power in monomial
        if len(monomial) == power == 1 and isinstance(call, DimCall) and call.op == "mod"
    }
    for (of, by), factor in rests.items():
        if of != whole or not isinstance(by, int):
            continue
        for (outer, times), larger in rests.items():
            if outer == floordiv(whole, by) and isinstance(times, int) and larger == factor * by:
                parts = mod(whole, by) * factor + mod(outer, times) * larger
                return _joined(dim - parts + mod(whole, by * times) * factor, axis)
    return dim


def _wraps(offset: Dim, axis: str) -> bool:
    """Whether an offset steps along the axis and jumps: by a rest, or by it and a quotient."""
    ops = {c.op for c in _calls(offset) if c.args[0] == symbol(axis)}
    is_bare = not isinstance(offset, int) and any(
        atom == axis for monomial, _ in offset.terms for atom, _ in monomial
    )
    return "mod" in ops or ("floordiv" in ops and is_bare)


def _calls(dim: Dim) -> Iterator[DimCall]:
    """The calls in a dim, and those in their arguments."""
    for call in calls_of(dim):
        yield call
        for arg in call.args:
            yield from _calls(arg)


def _parted(dim: Dim, axis: str, width: int, run: str, place: str) -> Dim:
    """`dim` in terms of the number of a run and the place in it."""
    if axis not in symbols_of(dim):
        return dim

    def part(atom: Atom) -> Dim:
        if atom == axis:
            return symbol(run) * width + symbol(place)
        if isinstance(atom, str):
            return symbol(atom)
        if atom.args[0] == symbol(axis) and atom.op in ("mod", "floordiv"):
            whole = atom.args[1] // width
            if atom.op == "floordiv":
                return floordiv(symbol(run), whole)
            return mod(symbol(run), whole) * width + symbol(place)
        return CALLS[atom.op](*(_parted(arg, axis, width, run, place) for arg in atom.args))

    return map_atoms(dim, part)


def _sweep(
    scope: Scope,
    axis: str,
    lo: str,
    hi: str,
    sinks: Sequence[Sink],
    whole: tuple[str, str] | None = None,
) -> None:
    """`whole`: an axis that the swept one is a part of, and what it is."""
    groups: dict[int | None, list[Sink]] = {}
    for sink in sinks:
        key = None if sink.guard is None else scope.numbering.number(sink.guard)
        groups.setdefault(key, []).append(sink)
    for group in groups.values():
        guard = group[0].guard
        if guard is not None and axis not in scope.needs(guard):
            text = scope.emit(guard)
            with scope.block(f"if ({text} >= 0) {{"):
                _cut(scope, axis, lo, hi, group, None, MAX_CUTS, whole)
        else:
            _cut(scope, axis, lo, hi, group, guard, MAX_CUTS, whole)


def _cut(
    scope: Scope,
    axis: str,
    lo: str,
    hi: str,
    sinks: Sequence[Sink],
    guard: Element | None,
    budget: int,
    whole: tuple[str, str] | None,
) -> None:
    elements = [e for sink in sinks for e in sink.elements]
    elements += [] if guard is None else [guard]
    for select in _undecided(scope, elements) if budget else ():
        condition = (select.lhs, select.rhs)
        deps = symbols_of(select.lhs) | symbols_of(select.rhs)
        if not deps <= scope.axes | set(scope.kernel.symbols):
            continue
        if axis not in deps:
            for truth in scope.branches(f"{scope.dim(select.lhs)} < {scope.dim(select.rhs)}"):
                with scope.assuming(condition, truth):
                    _cut(scope, axis, lo, hi, sinks, guard, budget - 1, whole)
            return
        found = _boundary(select, axis)
        if found is None:
            continue
        middle, then_first = found
        cut = _clamp(scope, lo, hi, middle)
        before = scope.facts
        for start, stop, truth in ((lo, cut, then_first), (cut, hi, not then_first)):
            if start == stop:
                continue
            head = "{" if start.isdigit() and stop.isdigit() else f"if ({start} < {stop}) {{"
            with scope.block(head), scope.assuming(condition, truth):
                _narrow(scope, axis, start, stop)
                _cut(scope, axis, start, stop, sinks, guard, budget - 1, whole)
            scope.facts = before
        return
    _loop(scope, axis, lo, hi, sinks, guard, whole)


def _clamp(scope: Scope, lo: str, hi: str, middle: Dim) -> str:
    """`middle` held within [lo, hi]."""
    if lo.isdigit() and hi.isdigit() and isinstance(middle, int):
        return str(min(int(hi), max(int(lo), middle)))
    cut = scope.fresh("cut")
    scope.write(f"const int64_t {cut} = tw_lesser({hi}, tw_greater({lo}, {scope.dim(middle)}));")
    return cut


def _narrow(scope: Scope, axis: str, start: str, stop: str) -> None:
    low, high = scope.facts.bounds(symbol(axis))
    low = int(start) if start.isdigit() else low or 0
    scope.facts = scope.facts.narrowed(axis, low, int(stop) - 1 if stop.isdigit() else high)


def _boundary(select: Select, axis: str) -> tuple[Dim, bool] | None:
    """(where the condition changes, whether it holds below) for one affine in the axis."""
    difference = select.lhs - select.rhs
    factor = coefficient_of(difference, axis)
    if not isinstance(factor, int) or factor == 0:
        return None
    rest = substitute(difference, {axis: 0})
    if factor > 0:
        # factor * i + rest < 0  <=>  i < -(rest // factor)
        return floordiv(rest, factor) * -1, True
    return floordiv(rest, -factor) + 1, False  # i > rest / -factor


def _undecided(scope: Scope, elements: Sequence[Element]) -> Iterator[Select]:
    """Selects that still choose, outer ones first."""
    seen: set[int] = set()
    stack = list(reversed(elements))
    while stack:
        element = scope.decided(stack.pop())
        number = scope.numbering.number(element)
        if number in seen:
            continue
        seen.add(number)
        if isinstance(element, Select):
            yield element
        stack += reversed(children(element))


def _loop(
    scope: Scope,
    axis: str,
    lo: str,
    hi: str,
    sinks: Sequence[Sink],
    guard: Element | None,
    whole: tuple[str, str] | None,
) -> None:
    simd = [] if guard is not None else ["#pragma omp simd"]
    known = () if whole is None else whole[:1]
    with scope.loop(axis, lo, hi, *simd, known=known, hoists=True):
        if whole is not None:
            scope.write(f"const int64_t {dims.name(whole[0])} = {whole[1]};")
        if guard is not None:
            scope.write(f"if ({scope.emit(guard)} < 0) continue;")
        for sink in sinks:
            sink.write(scope)
