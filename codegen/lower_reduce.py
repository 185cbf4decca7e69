"""Groups around reductions: rows, phases of reductions over one axis, then stores."""

from collections.abc import Sequence

from ..ir.dim import Dim, product
from ..ir.errors import UnsupportedOp
from ..ir.graph import Node, Value
from ..ir.types import DType, f32, f64, i64
from .forward import forward_index, trailing_views
from .indexing import delinearize, linearize
from .inline import Inliner
from .loops import (
    Apply,
    Axis,
    Const,
    Element,
    Index,
    Reduce,
    Reduction,
    Ref,
    Store,
    held,
    widened,
)

_OPS = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "prod", "any": "any",
        "all": "all", "argmax": "argmax", "argmin": "argmin"}  # fmt: skip


def lower_reduce(inliner: Inliner, nodes: Sequence[Node], outputs: list[Value]) -> Reduce:
    """The part of a group with reductions (or one cumsum)."""
    if any(n.op.kind == "scan" for n in nodes):
        return _lower_scan(inliner, nodes, outputs)
    return _RowLowering(inliner, nodes).lower(outputs)


class _RowLowering:
    def __init__(self, inliner: Inliner, nodes: Sequence[Node]):
        self.inliner = inliner
        self.reductions = [n for n in nodes if n.op.kind == "reduce"]
        first = self.reductions[0]
        self.shape = first.operands[0].shape
        self.reduced = _axes(first)
        kept = [i for i in range(len(self.shape)) if i not in self.reduced]
        self.row_index = tuple(inliner.axis(f"_i{i}", self.shape[i]) for i in kept)
        self.rows = tuple(Axis(f"_i{i}", self.shape[i]) for i in kept if self.shape[i] != 1)
        extents = [self.shape[i] for i in sorted(self.reduced)]
        self.axis = Axis("_r", product(extents))
        r = inliner.axis("_r", self.axis.extent)
        places = iter(delinearize(r, extents, inliner.facts))
        rows = iter(self.row_index)
        self.index = tuple(
            next(places) if i in self.reduced else next(rows) for i in range(len(self.shape))
        )

    def lower(self, outputs: list[Value]) -> Reduce:
        depths = self.depths()
        phases: list[list[Reduction]] = [[] for _ in range(max(depths.values()))]
        for number, node in enumerate(self.reductions):
            phases[depths[node] - 1].append(self.reduction(f"red{number}", node))
        row_stores, stores = [], []
        for output in outputs:
            store, is_row = self.store(output)
            (row_stores if is_row else stores).append(store)
        return Reduce(
            self.rows, self.axis, tuple(map(tuple, phases)), tuple(row_stores), tuple(stores)
        )

    def depths(self) -> dict[Node, int]:
        """How many reductions lie one after another up to each."""
        memo: dict[Value, int] = {}

        def depth(value: Value) -> int:
            if not self.inliner.is_inside(value):
                return 0
            if value not in memo:
                inner = max((depth(v) for v in value.node.operands), default=0)
                memo[value] = inner + (value.node.op.kind == "reduce")
            return memo[value]

        return {n: depth(n.results[0]) for n in self.reductions}

    def reduction(self, name: str, node: Node) -> Reduction:
        (operand,) = node.operands
        same = [self.shape[i] for i in range(len(self.shape))]
        if _axes(node) != self.reduced or list(operand.shape) != same:
            raise UnsupportedOp(
                "two reductions of one kernel run over different axes",
                where=node.loc or "",
                facts=f"{operand.type} over {sorted(_axes(node))}, the first over "
                f"{sorted(self.reduced)} of [{', '.join(map(str, self.shape))}]",
                fix="partition them into two groups",
            )
        value = self.inliner.element(operand, self.index)
        dtype = _accumulate(node)
        result = self.result(name, node, dtype)
        self.inliner.bound[node.results[0]] = lambda index: self.check(node, index, result)
        return Reduction(name, _OPS[node.op.name], value, dtype)

    def result(self, name: str, node: Node, dtype: DType) -> Element:
        ref = Ref(name, dtype)
        if node.op.name != "mean":
            return ref
        count = self.axis.extent
        size = Const(float(count), dtype) if isinstance(count, int) else Index(count, dtype)
        return Apply("div", (ref, size), dtype)

    def check(self, node: Node, index: tuple[Dim, ...], result: Element) -> Element:
        if node.attrs["keepdims"]:
            index = tuple(at for i, at in enumerate(index) if i not in self.reduced)
        if index != self.row_index:
            raise UnsupportedOp(
                "a row's reduction is read from another row",
                where=node.loc or "",
                facts=f"row {self.row_index} reads row {index}",
                fix="partition the reader into another group",
            )
        return result

    def store(self, output: Value) -> tuple[Store, bool]:
        inliner = self.inliner
        source, views = trailing_views(inliner, output)
        row_shape = [d for i, d in enumerate(self.shape) if i not in self.reduced]
        is_row = _squeezed(source.shape) == _squeezed(row_shape)
        if is_row:
            index = _spread(source.shape, row_shape, self.row_index)
        elif _squeezed(source.shape) == _squeezed(self.shape):
            index = _spread(source.shape, self.shape, self.index)
        else:
            raise UnsupportedOp(
                "an output of a reduction's kernel has neither the shape of a row's value nor of"
                " what is reduced",
                where=output.node.loc or "",
                facts=f"{source.type}; rows {row_shape} of {list(self.shape)}",
                fix="partition it into another group",
            )
        value = inliner.element(source, index)
        at = forward_index(inliner, views, source, index)
        return Store(
            inliner.param(output, is_written=True), linearize(at, output.shape), value
        ), is_row


def _axes(node: Node) -> frozenset[int]:
    rank = node.operands[0].type.rank
    axes = (node.attrs["axis"],) if "axis" in node.attrs else node.attrs["axes"]
    return frozenset(a % rank for a in axes)


def _accumulate(node: Node) -> DType:
    dtype = node.operands[0].dtype
    if node.op.name in ("argmax", "argmin"):
        return i64
    if dtype.is_float:
        return f64 if dtype == f64 else f32
    return i64 if node.op.name in ("sum", "prod") else widened(dtype)


def _squeezed(shape: Sequence[Dim]) -> list[Dim]:
    return [d for d in shape if d != 1]


def _spread(shape: Sequence[Dim], like: Sequence[Dim], index: Sequence[Dim]) -> tuple[Dim, ...]:
    """`index` over `like`, moved to the axes of `shape`, which differs in axes of size 1 only."""
    rest = iter(at for at, d in zip(index, like, strict=True) if d != 1)
    return tuple(0 if d == 1 else next(rest) for d in shape)


def _lower_scan(inliner: Inliner, nodes: Sequence[Node], outputs: list[Value]) -> Reduce:
    """A running sum as, for each place, the sum of what is not after it.

    Quadratic in the axis; scans of models we compile are over short axes.
    """
    (node,) = [n for n in nodes if n.op.kind in ("scan", "reduce")]
    (x,) = node.operands
    axis = node.attrs["axis"] % x.type.rank
    index = tuple(inliner.axis(f"_i{i}", d) for i, d in enumerate(x.shape))
    r = inliner.axis("_r", x.shape[axis])
    dtype = f64 if x.dtype == f64 else f32 if x.dtype.is_float else i64
    element = inliner.element(x, (*index[:axis], r, *index[axis + 1 :]))
    value = inliner.select(r, index[axis] + 1, element, Const(0, held(element)))
    ref = Ref("red0", dtype)
    inliner.bound[node.results[0]] = lambda at: ref
    stores = []
    for output in outputs:  # the sums themselves, or views of them
        source, views = trailing_views(inliner, output)
        stored = inliner.element(source, index)
        at = forward_index(inliner, views, source, index)
        number = inliner.param(output, is_written=True)
        stores.append(Store(number, linearize(at, output.shape), stored))
    rows = tuple(Axis(f"_i{i}", d) for i, d in enumerate(x.shape) if d != 1)
    phase = (Reduction("red0", "sum", value, dtype),)
    return Reduce(rows, Axis("_r", x.shape[axis]), (phase,), tuple(stores), ())
