"""The innermost loop of a part: a vectorisable sweep over one axis, free of conditions.

A Select on the swept axis cuts its range; one that does not depend on it becomes an `if` around the
loop. What is left (conditions through division, or too many) is decided element by element.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...ir.dim import Dim, floordiv, substitute, symbol, symbols_of
from ...ir.indexing import coefficient_of
from ...ir.types import DType
from ..elements import children
from ..loops import Element, Select, Store
from .elements import Scope
from .scalars import convert

MAX_CUTS = 4  # each doubles the code


@dataclass(frozen=True)
class Sink:
    """What a sweep writes: elements it reads, how one point is written, a guard."""

    elements: tuple[Element, ...]
    write: Callable[[Scope], None]
    guard: Element | None = None


def store_sink(store: Store) -> Sink:
    """The sink of a plain store."""
    inner = tuple(element for _, element in store.indirect)
    return Sink((store.value, *inner), lambda scope: scope.store(store), store.guard)


def buffer_sink(place: str, element: Element, dtype: DType) -> Sink:
    """`place`, of a buffer of `dtype`, = the element."""

    def write(scope: Scope) -> None:
        value = convert(scope.emit(element), scope.decided(element).dtype, dtype)
        scope.write(f"{place} = {value};")

    return Sink((element,), write)


def sweep(scope: Scope, axis: str, lo: str, hi: str, sinks: Sequence[Sink]) -> None:
    """for axis in [lo, hi): the sinks. One loop for each distinct guard."""
    groups: dict[int | None, list[Sink]] = {}
    for sink in sinks:
        key = None if sink.guard is None else scope.numbering.number(sink.guard)
        groups.setdefault(key, []).append(sink)
    for group in groups.values():
        guard = group[0].guard
        if guard is not None and axis not in scope.needs(guard):
            text = scope.emit(guard)
            with scope.block(f"if ({text} >= 0) {{"):
                _cut(scope, axis, lo, hi, group, None, MAX_CUTS)
        else:
            _cut(scope, axis, lo, hi, group, guard, MAX_CUTS)


def _cut(
    scope: Scope,
    axis: str,
    lo: str,
    hi: str,
    sinks: Sequence[Sink],
    guard: Element | None,
    budget: int,
) -> None:
    elements = [e for sink in sinks for e in sink.elements]
    elements += [] if guard is None else [guard]
    for select in _undecided(scope, elements) if budget else ():
        condition = (select.lhs, select.rhs)
        deps = symbols_of(select.lhs) | symbols_of(select.rhs)
        if not deps <= scope.axes | set(scope.kernel.symbols):
            continue
        if axis not in deps:
            test = f"({scope.dim(select.lhs)} < {scope.dim(select.rhs)})"
            for head, truth in ((f"if {test} {{", True), ("else {", False)):
                with scope.block(head), scope.assuming(condition, truth):
                    _cut(scope, axis, lo, hi, sinks, guard, budget - 1)
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
                _cut(scope, axis, start, stop, sinks, guard, budget - 1)
            scope.facts = before
        return
    _loop(scope, axis, lo, hi, sinks, guard)


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


def _loop(scope: Scope, axis: str, lo: str, hi: str, sinks, guard: Element | None) -> None:
    simd = [] if guard is not None else ["#pragma omp simd"]
    with scope.loop(axis, lo, hi, *simd, hoists=True):
        if guard is not None:
            scope.write(f"if ({scope.emit(guard)} < 0) continue;")
        for sink in sinks:
            sink.write(scope)
