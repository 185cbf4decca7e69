"""Inlines the nodes of a group: the value of an output at an index, as one element expression.

A value from outside the group becomes a Load; what is computed inside becomes arithmetic; views
become index arithmetic and leave no trace.
"""

from collections.abc import Callable, Sequence

from ..ir.dim import Dim, Symbol, substitute, symbol, symbols_of
from ..ir.errors import UnsupportedOp
from ..ir.facts import Facts
from ..ir.graph import Graph, Node, Value
from ..ir.program import Check as CheckFacts
from ..ir.ranges import Ranges
from ..ir.scalar import Scalar, parse_scalar
from ..ir.types import DType, TensorType, bool_, f32
from .indexing import coefficient_of, delinearize, linearize
from .loops import Apply, Cast, Check, Const, Element, Index, Load, Param, Select, held, widened

_TO_BOOL = frozenset("lt le gt ge eq ne isnan".split())


class Inliner:
    """Element expressions of one group's values, and the parameters they load."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        layouts: dict[Value, str],
        packed_offset: Callable[[str, tuple[Dim, ...], tuple[Dim, ...]], Dim],
        ranges: Ranges | None = None,
    ):
        self.graph = graph
        self.nodes = set(nodes)
        self.layouts = layouts
        self.packed_offset = packed_offset
        self.params: list[Param] = []
        self.values: list[Value] = []  # the value behind each parameter
        self.ranges = ranges or Ranges(graph.facts)
        self.checks: list[CheckFacts] = []
        self._checks: dict[tuple[Node, Value], int] = {}
        self.axes: dict[str, Symbol] = {}
        self.indirect: dict[str, Element] = {}
        # values given a meaning by the part being lowered (a reduction, an accumulator)
        self.bound: dict[Value, Callable[[tuple[Dim, ...]], Element]] = {}
        self.keep_plain = False  # loads keep row-major offsets of packed weights
        self._extents: dict[str, Dim] = {}
        self._facts: Facts | None = None
        self._memo: dict[tuple[Value, tuple[Dim, ...]], Element] = {}

    # ---- axes and parameters ----

    def axis(self, name: str, extent: Dim) -> Dim:
        """Declare an axis; 0 when its only index is 0."""
        if extent == 1:
            return 0
        high = self.graph.facts.bounds(extent)[1]
        self.axes[name] = Symbol(name, 0, None if high is None else high - 1)
        self._facts = None
        self._extents[name] = extent
        return symbol(name)

    @property
    def facts(self) -> Facts:
        """Facts over the graph's symbols and the declared axes."""
        if self._facts is None:
            self._facts = AxisFacts(self.graph, self.axes, self._extents)
        return self._facts

    def param(self, value: Value, *, is_written: bool = False) -> int:
        """The number of the parameter that is `value`'s buffer."""
        if value in self.values:
            index = self.values.index(value)
            if is_written and not self.params[index].is_written:
                old = self.params[index]
                self.params[index] = Param(old.type, True, old.layout)
            return index
        self.values.append(value)
        layout = self.layouts.get(value, "plain")
        is_constant = self.graph.is_weight(value)
        self.params.append(Param(value.type, is_written, layout, is_constant))
        return len(self.params) - 1

    def is_inside(self, value: Value) -> bool:
        return value.node is not None and value.node in self.nodes

    # ---- elements ----

    def element(self, value: Value, index: tuple[Dim, ...]) -> Element:
        """The value at `index` (dims over axes, graph symbols and indirect symbols)."""
        key = (value, index)
        if key not in self._memo:
            if value in self.bound:
                self._memo[key] = self.bound[value](index)
            elif not self.is_inside(value):
                self._memo[key] = self.load(value, index)
            else:
                self._memo[key] = self._inside(value.node, index)
        return self._memo[key]

    def forget(self) -> None:
        """Drop remembered elements: after `bound` changed."""
        self._memo.clear()

    def load(self, value: Value, index: tuple[Dim, ...]) -> Load:
        """A load of a parameter."""
        number = self.param(value)
        layout = self.params[number].layout
        if layout == "plain" or self.keep_plain:
            offset = linearize(index, value.shape)
        else:
            offset = self.packed_offset(layout, value.shape, index)
        return Load(number, offset, widened(value.dtype), self.indirect_of(offset))

    def indirect_of(self, *offsets: Dim) -> tuple[tuple[str, Element], ...]:
        """Definitions of the indirect symbols that occur in `offsets`."""
        names = frozenset().union(*(symbols_of(o) for o in offsets))
        return tuple((n, e) for n, e in self.indirect.items() if n in names)

    def indirect_symbol(self, element: Element) -> Dim:
        """A symbol that stands for an integer element in index arithmetic."""
        if isinstance(element, Const):
            return int(element.value)
        if isinstance(element, Index):
            return element.value
        for name, known in self.indirect.items():
            if known == element:
                return symbol(name)
        name = f"_g{len(self.indirect)}"
        self.indirect[name] = element
        self.axes[name] = Symbol(name, 0)
        self._facts = None
        return symbol(name)

    # ---- checks ----

    def checked(
        self, element: Element, node: Node, operand: Value, size: Dim | None, *, wraps: bool = False
    ) -> Element:
        """`element` of `operand`, which `node` takes as an index or (size None) as a divisor.

        Behind a check, unless no element can be a fault.
        """
        if size is None:
            is_proved = self.ranges.is_nonzero(operand)
        else:
            is_proved = self.ranges.inside(operand, size)
        if is_proved:
            return element
        number = self._checks.setdefault((node, operand), len(self.checks))
        if number == len(self.checks):
            self.checks.append(CheckFacts(node.op.name, node.loc, wraps, size is None))
        return Check(element, size, wraps, number, element.dtype)

    def _lookup(self, node: Node, axis: int, index: Element, element: Callable[[Dim], Element]):
        """The element at `index` of the node's first operand along `axis`."""
        source, where = node.operands
        size = source.shape[axis]
        checked = self.checked(index, node, where, size)
        found = element(self.indirect_symbol(checked))
        if checked is index or self.graph.facts.proved_le(1, size):
            return found
        # of an empty axis nothing may be read: the checked index stands in, which is 0 and recorded
        return self.select(0, size, found, Cast(checked, found.dtype))

    def _check_index(self, node: Node, index: tuple[Dim, ...]) -> Element:
        (operand,) = node.operands
        size, wraps = node.attrs["size"], node.attrs["wraps"]
        return self.checked(self.element(operand, index), node, operand, size, wraps=wraps)

    def _inside(self, node: Node, index: tuple[Dim, ...]) -> Element:
        if node.op.scalar is not None:
            return self._scalar(node, index)
        handler = getattr(self, f"_{node.op.name}", None)
        if handler is None:
            raise UnsupportedOp(
                f"{node.op.name} cannot be part of this kernel",
                where=node.loc or "",
                facts=f"group {node.group}: {', '.join(sorted({n.op.name for n in self.nodes}))}",
                fix="partition it alone, or decompose it first",
            )
        return handler(node, index)

    def _scalar(self, node: Node, index: tuple[Dim, ...]) -> Element:
        operands = {
            name: self.element(v, broadcast_index(index, v.type))
            for name, v in zip(node.op.operands, node.operands)
        }
        dtype = node.results[0].dtype
        if node.op.name == "cast":
            return cast(operands["x"], node.operands[0].dtype, dtype)
        if node.op.name in ("floordiv", "mod") and dtype.is_integer:
            operands["y"] = self.checked(operands["y"], node, node.operands[1], None)
        tree = parse_scalar(node.op.scalar, node.op.operands, tuple(node.op.attrs))
        compute = widened(node.operands[-1].dtype)
        return build_scalar(tree, operands, node.attrs, compute)

    def _reshape(self, node: Node, index: tuple[Dim, ...]) -> Element:
        source = node.operands[0]
        offset = linearize(index, node.results[0].shape)
        return self.element(source, delinearize(offset, source.shape, self.facts))

    def _transpose(self, node: Node, index: tuple[Dim, ...]) -> Element:
        inner: list[Dim] = [0] * len(index)
        for at, axis in zip(index, node.attrs["perm"]):
            inner[axis] = at
        return self.element(node.operands[0], tuple(inner))

    def _broadcast_to(self, node: Node, index: tuple[Dim, ...]) -> Element:
        return self.element(node.operands[0], broadcast_index(index, node.operands[0].type))

    def _slice(self, node: Node, index: tuple[Dim, ...]) -> Element:
        axis = node.attrs["axis"] % len(index)
        at = index[axis] * node.attrs["step"] + node.attrs["start"]
        return self.element(node.operands[0], (*index[:axis], at, *index[axis + 1 :]))

    def _concat(self, node: Node, index: tuple[Dim, ...]) -> Element:
        axis = node.attrs["axis"] % len(index)
        end = node.results[0].shape[axis]
        result: Element | None = None
        for part in reversed(node.operands):
            start = end - part.shape[axis]
            inner = (*index[:axis], index[axis] - start, *index[axis + 1 :])
            if result is None or self.facts.proved_lt(index[axis], end):
                result = self.element(part, inner)
            elif not self.facts.proved_le(end, index[axis]):
                chosen = self.element(part, inner)
                result = self.select(index[axis], end, chosen, result)
            end = start
        assert result is not None
        return result

    def _pad(self, node: Node, index: tuple[Dim, ...]) -> Element:
        axis = node.attrs["axis"] % len(index)
        source, before = node.operands[0], node.attrs["before"]
        inner = (*index[:axis], index[axis] - before, *index[axis + 1 :])
        element = self.element(source, inner)
        value = Const(node.attrs["value"], widened(source.dtype))
        inside = self.select(index[axis], before + source.shape[axis], element, value)
        if before == 0:
            return inside
        return self.select(index[axis], before, value, inside)

    def select(self, lhs: Dim, rhs: Dim, then: Element, other: Element) -> Select:
        """`then` where lhs < rhs, else `other`."""
        return Select(lhs, rhs, then, other, held(then), self.indirect_of(lhs, rhs))

    def _full(self, node: Node, index: tuple[Dim, ...]) -> Element:
        return Const(node.attrs["value"], widened(node.attrs["dtype"]))

    def _iota(self, node: Node, index: tuple[Dim, ...]) -> Element:
        value = index[0] * node.attrs["step"] + node.attrs["start"]
        return Index(value, widened(node.attrs["dtype"]), self.indirect_of(value))

    def _dim_value(self, node: Node, index: tuple[Dim, ...]) -> Element:
        return Index(node.attrs["value"], widened(node.attrs["dtype"]))

    def _gather(self, node: Node, index: tuple[Dim, ...]) -> Element:
        source, where = node.operands
        axis = node.attrs["axis"] % source.type.rank
        before, rest = index[:axis], index[axis + where.type.rank :]
        at = self.element(where, index[axis : axis + where.type.rank])
        return self._lookup(node, axis, at, lambda i: self.element(source, (*before, i, *rest)))

    def _gather_elements(self, node: Node, index: tuple[Dim, ...]) -> Element:
        source, where = node.operands
        axis = node.attrs["axis"] % source.type.rank
        before, rest = index[:axis], index[axis + 1 :]
        at = self.element(where, index)
        return self._lookup(node, axis, at, lambda i: self.element(source, (*before, i, *rest)))


class AxisFacts(Facts):
    """Facts that also know axis < extent, which ranges alone lose when the extent is symbolic."""

    def __init__(self, graph: Graph, axes: dict[str, Symbol], extents: dict[str, Dim]):
        super().__init__({**graph.symbols, **axes})
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


def broadcast_index(index: tuple[Dim, ...], type: TensorType) -> tuple[Dim, ...]:
    """The index of an operand of `type` for an index of the broadcast result."""
    tail = index[len(index) - type.rank :]
    return tuple(0 if dim == 1 else at for at, dim in zip(tail, type.shape))


def cast(element: Element, source: DType, dtype: DType) -> Element:
    """Conversion from a value stored as `source`: nothing where its widened dtype is kept."""
    if dtype == source or (dtype == f32 and widened(source) == f32):
        return element
    return Cast(element, dtype)


def build_scalar(tree: Scalar, operands: dict[str, Element], attrs, dtype: DType) -> Element:
    """A scalar tree with operands put in. Constants take the dtype of what they meet."""
    match tree.fn:
        case "arg":
            return operands[tree.value]
        case "attr":
            return Const(attrs[tree.value], dtype)
        case "const":
            return Const(tree.value, dtype)
    args = tuple(build_scalar(a, operands, attrs, dtype) for a in tree.args)
    result = bool_ if tree.fn in _TO_BOOL else held(args[-1])
    return Apply(tree.fn, args, result)
