"""What is asked of element expressions whatever language prints them.

Their parts, walks over them, copies with other parts, what a value depends on, and what is known of
the indices in them. `indirect` indices count among the parts, in front of the operands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from ..ir.dim import Dim, Expr, Symbol, substitute, symbols_of
from ..ir.indexing import AxisFacts
from .loops import (
    Apply,
    Axis,
    Cast,
    Check,
    Const,
    Element,
    Index,
    Load,
    LoopKernel,
    Part,
    Ref,
    Select,
    Store,
)

# ---- parts ---------------------------------------------------------------------------------


def children(e: Element) -> tuple[Element, ...]:
    """The elements that `e` is made of."""
    inner = tuple(i for _, i in getattr(e, "indirect", ()))
    match e:
        case Apply(args=args):
            return args
        case Cast(arg=arg) | Check(arg=arg):
            return (arg,)
        case Select(then=then, other=other):
            return (*inner, then, other)
    return inner


def dims_of(e: Element) -> tuple[Dim, ...]:
    """The index expressions that `e` itself holds."""
    match e:
        case Index(value=dim) | Load(offset=dim) | Check(size=dim):
            return () if dim is None else (dim,)
        case Select(lhs=lhs, rhs=rhs):
            return lhs, rhs
    return ()


def rebuilt(
    e: Element, element: Callable[[Element], Any], dim: Callable[[Dim], Dim] = lambda d: d
) -> Element:
    """`e` with what `element` and `dim` make of its children and its index expressions."""
    match e:
        case Apply(args=args):
            return replace(e, args=tuple(map(element, args)))
        case Cast(arg=arg):
            return replace(e, arg=element(arg))
        case Check(arg=arg, size=size):
            return replace(e, arg=element(arg), size=None if size is None else dim(size))
        case Const() | Ref():
            return e
    changed = {"indirect": tuple((name, element(i)) for name, i in e.indirect)}
    match e:
        case Index(value=value):
            return replace(e, value=dim(value), **changed)
        case Load(offset=offset):
            return replace(e, offset=dim(offset), **changed)
    sides = {"then": element(e.then), "other": element(e.other)}
    return replace(e, lhs=dim(e.lhs), rhs=dim(e.rhs), **sides, **changed)


def mapped(
    element: Element,
    rule: Callable[[Element], Element],
    dim: Callable[[Dim], Dim] = lambda d: d,
) -> Element:
    """The element with `rule` applied to each of its parts, inner ones first, and `dim` to dims.

    What was shared stays shared.
    """
    memo: dict[int, Element] = {}

    def visit(e: Element) -> Element:
        if id(e) not in memo:
            memo[id(e)] = rule(rebuilt(e, visit, dim))
        return memo[id(e)]

    return visit(element)


def substituted(
    element: Element, dims: Mapping[str, Dim] = {}, refs: Mapping[str, Element] = {}
) -> Element:
    """The element with axes and named results replaced."""
    return mapped(
        element,
        lambda e: refs.get(e.name, e) if isinstance(e, Ref) else e,
        lambda d: substitute(d, dims),
    )


def substituted_store(
    store: Store, dims: Mapping[str, Dim] = {}, refs: Mapping[str, Element] = {}
) -> Store:
    """The store with axes and named results replaced."""
    guard = None if store.guard is None else substituted(store.guard, dims, refs)
    indirect = tuple((n, substituted(e, dims, refs)) for n, e in store.indirect)
    value = substituted(store.value, dims, refs)
    return Store(store.param, substitute(store.offset, dims), value, indirect, guard)


# ---- walks ---------------------------------------------------------------------------------


def walk(item: Any) -> Iterator[Any]:
    """Every dataclass and dim inside an element or a part, each distinct object once."""
    seen: set[int] = set()
    stack = [item]
    while stack:
        current = stack.pop()
        if isinstance(current, tuple):
            stack.extend(reversed(current))
        elif isinstance(current, Expr):
            yield current
        elif is_dataclass(current) and id(current) not in seen:
            seen.add(id(current))
            yield current
            stack.extend(getattr(current, name) for name in reversed(_field_names(type(current))))


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def loads_of(item: Any) -> list[Load]:
    """Every Load inside, those of indirect indices included, each once."""
    return [e for e in walk(item) if isinstance(e, Load)]


def kernel_symbols(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Names of graph symbols in `parts`, sorted; axes and indirect indices are not among them."""
    names: set[str] = set()
    bound: set[str] = set()
    for item in walk(parts):
        if isinstance(item, Expr):
            names |= symbols_of(item)
        elif isinstance(item, Axis):
            bound.add(item.name)
        else:
            bound |= {name for name, _ in getattr(item, "indirect", ())}
    return tuple(sorted(names - bound))


# ---- placement -----------------------------------------------------------------------------


class Numbering:
    """Numbers elements so that equal ones share a number, without walking a shared tree twice."""

    def __init__(self):
        self._by_id: dict[int, int] = {}
        self._by_key: dict[Element, int] = {}
        self._keep: list[Element] = []  # ids stay valid while the objects live
        self._needs: list[frozenset[str]] = []

    def number(self, element: Element) -> int:
        """The number of `element`."""
        known = self._by_id.get(id(element))
        if known is not None:
            return known
        if isinstance(element, Const):  # 0.0 and -0.0 are not the same constant
            key: Element = Const(repr(element.value), element.dtype)
        else:
            key = rebuilt(element, self.number)
        number = self._by_key.setdefault(key, len(self._by_key))
        if number == len(self._needs):
            self._needs.append(self._find_needs(element))
        self._by_id[id(element)] = number
        self._keep.append(element)
        return number

    def needs(self, element: Element) -> frozenset[str]:
        """Axes, symbols, outer indirect indices and Refs ("ref x") that the value depends on."""
        return self._needs[self.number(element)]

    def _find_needs(self, e: Element) -> frozenset[str]:
        if isinstance(e, Ref):
            return frozenset((f"ref {e.name}",))
        own = frozenset[str]().union(*map(symbols_of, dims_of(e)))
        own -= {name for name, _ in getattr(e, "indirect", ())}
        return own.union(*map(self.needs, children(e)))


# ---- ranges --------------------------------------------------------------------------------


def index_facts(kernel: LoopKernel, axes: Iterable[Axis] = ()) -> AxisFacts:
    """What is known of a kernel's symbols and of indices below the axes' extents."""
    symbols = {n: kernel.ranges.get(n, Symbol(n, 0)) for n in kernel.symbols}
    return AxisFacts(symbols, {a.name: a.extent for a in axes})
