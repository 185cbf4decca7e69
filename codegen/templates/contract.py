"""Kernels around one contraction: prologue on the operands, accumulators, epilogue."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...ir.builder import decomposed
from ...ir.dim import Dim, maximum, minimum, product, symbols_of
from ...ir.graph import Node, Value
from ...ir.indexing import delinearize
from ...ir.target import Target
from ...ir.types import DType
from ..elements import Numbering, loads_of
from ..forward import stores_after
from ..groups import Group, Groups
from ..inline import Inliner, broadcast_index, build_scalar
from ..loops import (
    SUM,
    Apply,
    Axis,
    Cast,
    Const,
    Contract,
    Element,
    Grouping,
    LoopKernel,
    Reduction,
    accumulated,
    accumulator_of,
)
from .contract_schedules import contract_defaults, grouped_defaults
from .reduce import reduced
from .rows import reduced_axes
from .template import Bucket, Template, follows_elements

Stats = tuple[Reduction, ...]
Factors = list[tuple[str, Element]]  # ("mul" or "div", by what)

SHORT_RUN = 16  # neighbours of x that are copied at once in less time than finding them takes
EXPENSIVE = "an expensive x would be computed again for every tile of columns"


class ContractTemplate(Template):
    """One contraction, with what is computed of its operands and of its result."""

    name = "contract"
    kinds = frozenset(("contract",))
    parts = (Contract,)
    grows_over = "elements"

    def why_not(self, group: Group, node: Node) -> str | None:
        if node is group.anchor:
            return None
        if group.follows(node):
            return follows_elements(group, node)
        sources = [group.groups.sources(v) for v in group.anchor.operands]
        beside = group.groups.of[node].nodes
        feeds_x, *feeds_others = (not beside.isdisjoint(found) for found in sources)
        if any(feeds_others):
            return "a weight's expression would be computed again for every row"
        if node.op.kind in ("reduce", "composite"):
            return self.why_no_statistic(group, node)
        # a bias of each matrix: rows know theirs
        is_by_group = node.op.kind == "gather" and node.operands[1] in group.anchor.operands[1:]
        if node.op.kind != "elementwise" and (feeds_x or not is_by_group):
            return f"{node.op.name} cannot be computed inside a product's loop"
        return EXPENSIVE if feeds_x and node.op.cost == "expensive" else None

    def why_no_statistic(self, group: Group, node: Node) -> str | None:
        """Why a reduction or a norm is not of the rows of x."""
        groups, anchor = group.groups, group.anchor
        x, roles = anchor.operands[0], anchor.op.contraction(**anchor.attrs).x
        k = x.type.rank + roles.index("k") - 2
        last = node.operands[0].type.rank - 1
        if reduced_axes(groups.axes, node) != {last} or node.operands[0].shape[-1] != x.shape[k]:
            return f"{node.op.name} is not over what the product sums over"
        if node.op.kind == "composite" and not (node.op.is_whole and is_cheap(node)):
            return EXPENSIVE
        between = groups.between(node, x)
        for axis, size in enumerate(node.operands[0].shape[:-1]):
            at = groups.axes.of(node)[0][axis] if size != 1 else None
            if isinstance(at, int):
                at = groups.axes.through(between, node.results[0], at, x)
            if isinstance(at, str) or at == k:
                return f"{node.op.name} is not one value for all that the product sums over"
        return None

    def stored_operand(self, groups: Groups, node: Node, number: int) -> Value | None:
        """Of x, what its views repeat (the images of a convolution), if its last axis is short.

        Stored with its padding, its windows are runs over several axes.
        """
        value, found, hint = node.operands[number], None, groups.graph.facts.hint
        while number == 0 and value.node is not None and value.node.op.kind == "view":
            before, *others = value.node.operands
            if others:
                break
            is_repeated = 4 * hint(value.type.numel) >= 5 * hint(before.type.numel)
            if is_repeated and value.node.op.is_renaming:
                found = before
            value = before
        if found is None or not found.type.rank or hint(found.shape[-1]) >= SHORT_RUN:
            return None
        return found

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Contract]:
        return (_ContractLowering(inliner, nodes).lower(outputs),)

    def points(self, part: Contract) -> Dim:
        return product(a.extent for a in (*part.batch, part.m, part.n))

    def operations(self, part: Contract) -> Dim:
        """The products alone."""
        return 2 * len(part.ws) * self.points(part) * part.k.extent

    def products(self, part: Contract) -> tuple[DType, DType]:
        return part.x_dtype, part.w_dtype

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        return (contract_defaults if part.group is None else grouped_defaults)(kernel, target)

    def touched(self, part: Contract) -> dict[int, Dim]:
        """Of the matrices of a grouped product those that rows have: at most one a row."""
        if part.group is None:
            return {}
        groups = part.group.axis.extent
        chosen = product((part.n.extent, part.k.extent, minimum(part.m.extent, groups)))
        return {load.param: chosen for load in loads_of(part.ws)}


def is_cheap(node: Node) -> bool:
    """Whether a composite is cheap arithmetic, reductions aside."""
    parts = decomposed(node.op, (v.type for v in node.operands), node.attrs).nodes
    return all(n.op.kind == "reduce" or n.op.cost != "expensive" for n in parts)


class _ContractLowering:
    def __init__(self, inliner: Inliner, nodes: Sequence[Node]):
        self.inliner = inliner
        (anchor,) = [n for n in nodes if n.op.kind == "contract"]
        self.contraction = anchor.op.contraction(**anchor.attrs)
        self.result = anchor.results[0]
        self.x, *self.ws = anchor.operands
        index = self.ws.pop() if self.contraction.is_grouped else None
        self.statistics = [n for n in nodes if n.op.kind == "reduce"]
        *batch, m, n = self.result.shape
        k = self.x.shape[self.contraction.x.index("k") - 2]
        self.group = None
        # one weight for all rows: leading axes of x are rows too
        if index is not None or all(d == 1 for w in self.ws for d in w.shape[:-2]):
            rows = (*batch, m)
            self.batch: tuple[Axis, ...] = ()
            self.m = Axis("_m", product(rows))
            at = inliner.axis("_m", self.m.extent)
            self.rows = delinearize(at, rows, inliner.facts)
        else:
            apart = [inliner.axis(f"_b{i}", d) for i, d in enumerate(batch)]
            self.batch = tuple(Axis(f"_b{i}", d) for i, d in enumerate(batch) if d != 1)
            self.m = Axis("_m", m)
            self.rows = (*apart, inliner.axis("_m", m))
        self.n, self.k = Axis("_n", n), Axis("_k", k)
        self.n_at, self.k_at = inliner.axis("_n", n), inliner.axis("_k", k)
        self.matrix = self.rows[:-1]  # which of the weights' matrices
        if index is not None:
            axis = Axis("_group", self.ws[0].shape[0])
            self.matrix = (inliner.axis(axis.name, axis.extent),)
            place = inliner.element(index, self.rows)
            place = inliner.checked(place, anchor, index, axis.extent)
            self.group = Grouping(axis, place)

    def lower(self, outputs: Sequence[Value]) -> Contract:
        x, stats, phases, factors = self.lower_x()
        ws = tuple(map(self.lower_w, self.ws, self.contraction.ws))
        accs = [accumulated(f"acc{i}", self.x.dtype) for i in range(len(ws))]
        dtype = accs[0].dtype
        for fn, by in factors:
            accs = [Apply(fn, (a, by), dtype) for a in accs]
        named = {f"acc{i}": a for i, a in enumerate(accs)}
        result = build_scalar(self.contraction.tree, named, {}, dtype)
        index = (*self.rows, self.n_at)
        return Contract(
            self.batch,
            self.m,
            self.n,
            self.k,
            x,
            ws,
            stats,
            stores_after(self.inliner, {self.result: result}, index, outputs),
            _stored_dtype(self.inliner, self.x),
            _stored_dtype(self.inliner, self.ws[0]),
            phases,
            self.group,
        )

    def lower_x(self) -> tuple[Element, Stats, tuple[Stats, ...], Factors]:
        """x, statistics made beside the sums, those made before it in phases, factors of the sums.

        (x * g * s) @ w = ((x * g) @ w) * s where s is one number a row: such an s follows the sums,
        and its statistics are made in the same sweep of x. Where x needs more of its rows than
        factors (a mean that is subtracted), the statistics come first, and nothing is reordered.
        """
        inliner = self.inliner
        found: dict[str, Reduction] = {}  # those that others read come first
        for number, node in enumerate(self.statistics):
            inliner.bound[node.results[0]] = self.statistic(f"stat{number}", node, found)
        whole = inliner.element(self.x, self.index_of(self.x, self.contraction.x, self.rows[:-1]))
        for node in self.statistics:  # outside the loop over k they have no meaning
            del inliner.bound[node.results[0]]
            inliner.nodes.discard(node)
        elements = Numbering()
        x, factors = self.without_factors(whole, elements)
        reads = {name: _refs(elements, r.value) for name, r in found.items()}
        sums = all(r.combine == SUM for r in found.values()) and not any(reads.values())
        if sums and not _refs(elements, x):
            return x, tuple(found.values()), (), factors
        depth: dict[str, int] = {}
        for name in found:
            depth[name] = 1 + max((depth[other] for other in reads[name]), default=-1)
        phases = [[r for n, r in found.items() if depth[n] == d] for d in set(depth.values())]
        return whole, (), tuple(map(tuple, phases)), []

    def statistic(
        self, name: str, node: Node, found: dict[str, Reduction]
    ) -> Callable[[tuple[Dim, ...]], Element]:
        """How the result of a reduction of x's rows is read."""
        count = self.k.extent
        # over nothing any finite number will do: there is nothing to multiply it with
        count = max(count, 1) if isinstance(count, int) else maximum(count, 1)
        result = reduced(name, node, count)
        if isinstance(result, Apply) and result.fn == "div" and isinstance(result.args[1], Const):
            by = result.args[1]  # a product costs less than a quotient
            result = Apply("mul", (result.args[0], replace(by, value=1.0 / by.value)), by.dtype)

        def read(index: tuple[Dim, ...]) -> Element:
            row = index[:-1] if node.attrs["keepdims"] else index
            assert not any(self.k.name in symbols_of(at) for at in row), f"{name} depends on k"
            if name not in found:
                value = self.inliner.element(node.operands[0], (*row, self.k_at))
                found[name] = Reduction(name, node.op.combine, value)
            return result

        return read

    def without_factors(self, e: Element, elements: Numbering) -> tuple[Element, Factors]:
        """The element without the factors that statistics make the same for all of a row."""

        def is_factor(of: Element) -> bool:
            return bool(_refs(elements, of)) and self.k.name not in elements.needs(of)

        if isinstance(e, Cast) and e.dtype.is_float:
            inner, factors = self.without_factors(e.arg, elements)
            return (replace(e, arg=inner), factors) if factors else (e, [])
        if not isinstance(e, Apply) or e.fn not in ("mul", "div"):
            return e, []
        a, b = e.args
        if is_factor(b):
            inner, factors = self.without_factors(a, elements)
            return inner, [*factors, (e.fn, b)]
        if e.fn == "mul" and is_factor(a):
            inner, factors = self.without_factors(b, elements)
            return inner, [*factors, (e.fn, a)]
        (a, of_a), (b, of_b) = (self.without_factors(arg, elements) for arg in e.args)
        if e.fn == "div" and of_b:
            return e, []
        return replace(e, args=(a, b)), [*of_a, *of_b]

    def index_of(self, operand: Value, roles: str, outer: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Where an operand is read; `roles` are those of its last two axes."""
        at = {"m": self.rows[-1], "n": self.n_at, "k": self.k_at}
        return broadcast_index((*outer, *(at[role] for role in roles)), operand.type)

    def lower_w(self, w: Value, roles: str) -> Element:
        self.inliner.keep_plain = True  # an emitter knows best how panels are read
        try:
            return self.inliner.element(w, self.index_of(w, roles, self.matrix))
        finally:
            self.inliner.keep_plain = False


def _refs(elements: Numbering, e: Element) -> list[str]:
    """Names of the statistics that an element reads."""
    return [need[4:] for need in elements.needs(e) if need.startswith("ref ")]


def _stored_dtype(inliner: Inliner, value: Value) -> DType:
    """The dtype in which an operand lies in memory, through casts and views of one source.

    Up to casts that change what its products are added in: those of i8 as i32 may be made of the
    bytes, those as f32 or as i64 may not.
    """
    dtype = value.dtype
    while inliner.is_inside(value) and (value.node.op.is_cast or value.node.op.is_renaming):
        value = value.node.operands[0]
        if accumulator_of(value.dtype) != accumulator_of(dtype) or value.dtype.is_packed:
            break
        if value.dtype.bits < dtype.bits:
            dtype = value.dtype
    return dtype
