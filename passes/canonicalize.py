"""One way to write each thing, so that later passes need to know one way only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ..ir.builder import Builder, Rebuilder
from ..ir.dim import Dim, product
from ..ir.graph import Graph, Node, Value
from ..ir.op import broadcast_shapes, normalize_axis
from ..ir.ranges import Ranges
from ..ir.types import Shape, bool_
from . import findings
from .activation_rules import ACTIVATION_RULES
from .constant_rules import CONSTANT_RULES
from .manager import Pass
from .patterns import Any_, constant_of, pat
from .rewrite import replace_nodes, rewrite, rule
from .turn_weights import is_stored
from .view_rules import VIEW_RULES

x, w = Any_("x"), Any_("w")


@rule(pat.cast(x, bind="root"))
def cast_to_own_dtype(b: Builder, x: Value, root: Node):
    """cast(x) to the dtype x has  ->  x"""
    return x if x.dtype == root.results[0].dtype else None


@rule(pat.cast(pat.cast(x, bind="inner"), bind="root"), may_share=True)
def cast_twice(b: Builder, x: Value, inner: Node, root: Node):
    """cast(cast(x)) whose first step is exact  ->  cast(x)"""
    if not inner.results[0].dtype.holds(x.dtype):
        return None  # it rounds: that is how weights are stored narrow
    return b.cast(x, dtype=root.results[0].dtype)


@rule(pat.matmul(x, pat.transpose(w, bind="turned"), bind="root"), may_share=True)
def matmul_of_transpose(b: Builder, x: Value, w: Value, turned: Node, root: Node):
    """matmul(x, transpose(w))  ->  matmul(x, w) {transpose_w the other way}"""
    rank = w.type.rank
    if turned.attrs["perm"] != (*range(rank - 2), rank - 1, rank - 2):
        return None
    if root.attrs["transpose_w"] and is_stored(b, w):
        return None  # weights lie by rows of outputs: see turn-weights
    return b.matmul(x, w, transpose_w=not root.attrs["transpose_w"])


@rule(pat.matmul(x, w, bind="root"))
def outer_product(b: Builder, x: Value, w: Value, root: Node):
    """matmul(x, w) with an inner size of 1  ->  x * w, with broadcasting"""
    if x.shape[-1] != 1 or not x.dtype.is_float:
        return None
    if root.attrs["transpose_w"]:
        rank = w.type.rank
        w = b.transpose(w, perm=(*range(rank - 2), rank - 1, rank - 2))
    return b.mul(x, w)


MATH_RULES = [cast_to_own_dtype, cast_twice, matmul_of_transpose, outer_product]


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Fewer nodes and fewer forms; every recognizing pass relies on it."""

    name = "canonicalize"

    def run(self, graph: Graph) -> Graph:
        # node rules may open what rules can do and the other way round
        for _ in range(10):
            before = graph
            graph = rewrite(graph, [*VIEW_RULES, *CONSTANT_RULES, *MATH_RULES, *ACTIVATION_RULES])
            graph = replace_nodes(graph, _with_constants)
            graph = replace_nodes(graph, partial(_reshaped_first, graph), ("reshape",))
            ranges = Ranges(graph.facts)
            graph = replace_nodes(
                graph, partial(_known_comparison, ranges), ("lt", "le", "gt", "ge")
            )
            graph = replace_nodes(graph, partial(_proved_index, ranges), ("check_index",))
            graph = replace_nodes(graph, _written_everywhere, ("scatter_elements",))
            if graph is before:
                return graph
        findings.current().note("still changing after 10 rounds")
        return graph


def _with_constants(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    if node.op.is_renaming or node.op.kind == "gather":
        return _view_of_constant(b, node, operands[0].node)
    return _narrow_operands(b, node, operands)


def _view_of_constant(b: Builder, node: Node, source: Node | None) -> Sequence[Value] | None:
    """a view of a constant, or a lookup in one  ->  the constant in the result's shape"""
    if source is None or source.op.name != "full":
        return None
    findings.current().fire("view_of_constant")
    type = node.results[0].type
    return [b.full(value=source.attrs["value"], shape=type.shape, dtype=type.dtype)]


def _narrow_operands(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    """Operands of elementwise ops: constants become scalars, broadcasts that change nothing go."""
    if node.op.kind != "elementwise" or len(operands) < 2:
        return None
    shape = node.results[0].shape
    new = list(operands)
    for index, operand in enumerate(operands):
        known, maker = constant_of(operand), operand.node
        if known is not None and operand.type.rank:
            smaller = b.constant(known, operand.dtype)
        elif maker is not None and maker.op.name == "broadcast_to":
            (smaller,) = maker.operands
        else:
            continue
        others = [v.shape for i, v in enumerate(new) if i != index]
        if broadcast_shapes(smaller.shape, *others) == shape:
            new[index] = smaller
    if all(a is o for a, o in zip(new, operands)):
        return None
    findings.current().fire("narrow_operand")
    return b.node(node.op, new, node.attrs).results


def _reshaped_first(
    graph: Graph, b: Rebuilder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """reshape(f(reshape(x), ..)) that parts the axes which the others joined  ->  f(x, ..)"""
    (value,) = node.operands
    inner = value.node
    if inner is None or inner.op.kind != "elementwise" or value in graph.results:
        return None
    runs = _parted(value.shape, node.results[0].shape)
    if runs is None or len(graph.uses[value]) != 1:
        return None
    parts = []
    for operand in (b[v] for v in inner.operands):
        shape: tuple[Dim, ...] = ()
        for run, size in zip(runs[len(runs) - operand.type.rank :], operand.shape):
            shape += run if size != 1 else (1,) * len(run)
        maker = operand.node
        if operand.type.rank:
            if maker is None or maker.op.name != "reshape":
                return None
            (source,) = maker.operands
            if _large(source.shape) != _large(shape):
                return None
            operand = b.reshape(source, shape=shape)
        parts.append(operand)
    findings.current().fire("reshaped_first")
    return b.node(inner.op, parts, inner.attrs).results


def _large(shape: Shape) -> list[Dim]:
    return [size for size in shape if size != 1]


def _parted(joined: Shape, shape: Shape) -> list[Shape] | None:
    """The axes of `shape` that make up each joined one; None where they lie across each other."""
    runs, rest = [], list(shape)
    for size in joined:
        run: Shape = ()
        while rest and product(run) != size:
            run = (*run, rest.pop(0))
        if product(run) != size:
            return None
        runs.append(run)
    return None if rest or len(shape) <= len(joined) else runs


def _known_comparison(
    ranges: Ranges, b: Builder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """A comparison of integers that comes out the same for every element  ->  the constant"""
    less, more = operands if node.op.name in ("lt", "le") else operands[::-1]
    (low, high), (other_low, other_high) = ranges.numbers(less), ranges.numbers(more)
    strict = node.op.name in ("lt", "gt")
    is_always = high is not None and other_low is not None and high + strict <= other_low
    is_never = low is not None and other_high is not None and low + strict > other_high
    if not (is_always or is_never):
        return None
    findings.current().fire("known_comparison")
    return [b.full(value=is_always, shape=node.results[0].shape, dtype=bool_)]


def _proved_index(
    ranges: Ranges, b: Builder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """check_index of what is proved to lie inside the axis  ->  what it checks"""
    if not ranges.inside(operands[0], node.attrs["size"]):
        return None
    findings.current().fire("proved_index")
    return operands


def _written_everywhere(
    b: Builder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """One number put at all places of an axis, in whatever order  ->  the number

    As where the best keys of each query are chosen, and there are no more than that.
    """
    x, places, updates = node.operands
    number, axis = constant_of(updates), normalize_axis(node.attrs["axis"], x.type.rank)
    if node.attrs["combine"] != "replace" or number is None or places.shape != x.shape:
        return None
    while (order := places.node) is not None and order.op.is_cast:
        if not all(v.dtype.is_integer and v.dtype.bits >= 32 for v in (places, *order.operands)):
            return None
        (places,) = order.operands
    if order is None or order.op.name not in ("sort", "topk"):
        return None
    if places is not order.results[1] or order.operands[0].shape != x.shape:
        return None
    if normalize_axis(order.attrs["axis"], x.type.rank) != axis:
        return None
    findings.current().fire("written_everywhere")
    return [b.full(value=number, shape=x.shape, dtype=x.dtype)]
