"""A contraction whose x needs statistics of its rows, as one that sweeps x once.

x[k] = sum_i r_i e_i[k], where r_i is one number a row, made of statistics, and e_i needs none: so
sum_k x[k] w[k] = sum_i r_i sum_k e_i[k] w[k], and all sums are made side by side. A sum of squares
of x - mean(x) is taken apart in the same way.

A large mean would cancel what is left of it: so elements are shifted by the first of their row,
x - mean(x) = (x - x[0]) - mean(x - x[0]). That lies within sqrt(K) standard deviations of the mean,
however large the mean is, and a result is at most about sqrt(K) roundings off. Products have to be
made in the dtype of the sums: a matrix unit would round x - x[0] once more.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...ir.dim import maximum
from ..elements import Numbering, mapped, substituted, walk
from ..loops import SUM, Apply, Cast, Const, Contract, Element, Index, LoopKernel, Reduction, Ref

MAX_TERMS = 4  # accumulators a weight

Term = tuple[Element | None, Element | None]  # one number a row, an element along k; None is 1


def one_sweep(kernel: LoopKernel) -> LoopKernel | None:
    """The kernel without phases; None where x is no such sum, or one of too many terms."""
    (part,) = kernel.parts
    assert isinstance(part, Contract)
    reductions = [r for phase in part.phases for r in phase]
    if any(r.combine != SUM or not r.running.is_float for r in reductions):
        return None
    rewriting = _Rewriting(part)
    for reduction in reductions:
        if not rewriting.take(reduction):
            return None
    terms = rewriting.terms(rewriting.rewritten(part.x))
    if terms is None or len(terms) > MAX_TERMS:
        return None
    dtype = part.x.dtype
    ws: list[Element] = []
    refs: dict[str, Element] = {}
    for number, w in enumerate(part.ws):
        sums = []
        for row, along in terms:
            acc = Ref(f"acc{len(ws)}", dtype)
            ws.append(w if along is None else Apply("mul", (along, w), dtype))
            sums.append(_times(acc, row))
        refs[f"acc{number}"] = _total(sums, dtype)
    stores = tuple(replace(s, value=substituted(s.value, refs=refs)) for s in part.stores)
    read = {e.name for e in walk(stores) if isinstance(e, Ref)}
    swept = replace(
        part,
        x=Const(1.0, dtype),
        ws=tuple(ws),
        stats=tuple(r for r in rewriting.sums.values() if r.name in read),
        stores=stores,
        phases=(),
    )
    return replace(kernel, parts=(swept,))


class _Rewriting:
    """Statistics of one sweep, and what they say of those that were made in several."""

    def __init__(self, part: Contract):
        self.part = part
        self.k = part.k.name
        self.elements = Numbering()
        self.sums: dict[int, Reduction] = {}  # by the number of the element that is summed
        self.refs: dict[str, Element] = {}  # what a statistic of several sweeps is now
        self.shifts: dict[tuple[int, int], Element] = {}  # (v, mean(v)) -> v - mean(v)

    def take(self, reduction: Reduction) -> bool:
        """Make the sum in one sweep, or of several sums of one sweep; False where it is none."""
        value, dtype = self.rewritten(reduction.value), reduction.dtype
        count = self.count(dtype)
        if self.reads(value):
            terms = self.terms(value)
            if terms is None or len(terms) > MAX_TERMS:
                return False
            sums = [
                _times(count if along is None else self.sum_of(along), row) for row, along in terms
            ]
            self.refs[reduction.name] = _total(sums, dtype)
            return True
        self.refs[reduction.name] = self.sum_of(value)
        if isinstance(count, Const):
            by = Const(1.0 / count.value, dtype)
            mean = Apply("mul", (Ref(reduction.name, dtype), by), dtype)
            shifted = Apply("sub", (value, substituted(value, {self.k: 0})), dtype)
            off = Apply("sub", (shifted, _times(self.sum_of(shifted), by)), dtype)
            self.shifts[self.elements.number(value), self.elements.number(mean)] = off
        return True

    def rewritten(self, element: Element) -> Element:
        """The element with statistics of one sweep; a mean is subtracted from what is shifted."""

        def rule(e: Element) -> Element:
            if isinstance(e, Apply) and e.fn == "sub":
                key = tuple(self.elements.number(a) for a in e.args)
                return self.shifts.get(key, e)
            return e

        return substituted(mapped(element, rule), refs=self.refs)

    def count(self, dtype) -> Element:
        extent = self.part.k.extent
        if isinstance(extent, int):
            return Const(float(max(extent, 1)), dtype)
        return Index(maximum(extent, 1), dtype)

    def sum_of(self, along: Element) -> Ref:
        number = self.elements.number(along)
        if number not in self.sums:
            self.sums[number] = Reduction(f"sum{len(self.sums)}", SUM, along)
        reduction = self.sums[number]
        return Ref(reduction.name, reduction.dtype)

    def reads(self, e: Element) -> bool:
        """Whether a statistic is in the element."""
        return any(need.startswith("ref ") for need in self.elements.needs(e))

    def may_cancel(self, e: Apply) -> bool:
        """Whether one number a row meets elements that were not shifted towards it."""
        along = [self.k in self.elements.needs(arg) for arg in e.args]
        shifted = {self.elements.number(off) for off in self.shifts.values()}
        return not all(along) and self.elements.number(e) not in shifted

    def terms(self, e: Element) -> list[Term] | None:
        """The element as a sum of products of one number a row and an element along k."""
        found = self._terms(e)
        if found is None:
            return None
        joined: dict[int | None, Term] = {}
        for row, along in found:
            key = None if along is None else self.elements.number(along)
            if key in joined:
                before = joined[key][0]
                one = Const(1.0, e.dtype)
                row = Apply("add", (before or one, row or one), e.dtype)
            joined[key] = row, along
        return list(joined.values())

    def _terms(self, e: Element) -> list[Term] | None:
        if not self.reads(e):
            return [(None, e)]
        if self.k not in self.elements.needs(e):
            return [(e, None)]
        if isinstance(e, Cast) and e.dtype.is_float and e.arg.dtype.is_float:
            return self._terms(e.arg)
        if not isinstance(e, Apply) or e.fn not in ("add", "sub", "mul", "div"):
            return None
        a, b = (self._terms(arg) for arg in e.args)
        if a is None or b is None:
            return None
        if e.fn in ("add", "sub") and self.may_cancel(e):
            return None
        match e.fn:
            case "add":
                return [*a, *b]
            case "sub":
                minus = Const(-1.0, e.dtype)
                return [*a, *((_times(row, minus), along) for row, along in b)]
            case "mul":
                return [(_times(r, s), _times(x, y)) for r, x in a for s, y in b]
        if self.k in self.elements.needs(e.args[1]):
            return None
        by = Apply("div", (Const(1.0, e.dtype), e.args[1]), e.dtype)
        return [(_times(row, by), along) for row, along in a]


def _times(a: Element | None, b: Element | None) -> Element | None:
    """The product of what may be 1."""
    if a is None or b is None:
        return a or b
    return Apply("mul", (a, b), a.dtype)


def _total(terms: Sequence[Element], dtype) -> Element:
    total, *rest = terms
    for term in rest:
        total = Apply("add", (total, term), dtype)
    return total
