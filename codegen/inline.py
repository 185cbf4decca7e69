"""Inlines the nodes of a group: the value of an output at an index, as one element expression.

A value from outside the group becomes a Load; what is computed inside becomes arithmetic; views
become index arithmetic and leave no trace.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir.combine import Combine
from ..ir.dim import Dim, symbol, symbols_of
from ..ir.encoding import ROWS, Encoding
from ..ir.errors import UnsupportedOp
from ..ir.facts import Facts
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import (
    Checked,
    Choose,
    Fill,
    IndexContext,
    Mapped,
    Number,
    Read,
    map_index,
)
from ..ir.index_map import (
    Index as At,
)
from ..ir.indexing import AxisFacts, broadcast_index
from ..ir.program import DataCheck
from ..ir.ranges import Ranges
from ..ir.scalar import DIVISIONS, PREDICATES, Scalar
from ..ir.types import DType, bool_, f32, i32
from .loops import Apply, Cast, Check, Const, Element, Index, Load, Param, Select, widened


class Inliner:
    """Element expressions of one group's values, and the parameters they load."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        encodings: Mapping[Value, Encoding],
        ranges: Ranges | None = None,
    ):
        self.graph = graph
        self.nodes = set(nodes)
        self.encodings = encodings
        self.params: list[Param] = []
        self.values: list[Value] = []  # the value behind each parameter
        self.ranges = ranges or Ranges(graph.facts)
        self.checks: list[DataCheck] = []
        self._checks: dict[tuple[Node, Value | None], int] = {}
        self.facts = AxisFacts(graph.symbols)  # and the declared axes
        self.indirect: dict[str, Element] = {}
        # values given a meaning by the part being lowered (a reduction, an accumulator)
        self.bound: dict[Value, Callable[[tuple[Dim, ...]], Element]] = {}
        self.keep_plain = False  # loads keep row-major offsets of packed weights
        self._memo: dict[tuple[Value, tuple[Dim, ...]], Element] = {}

    # ---- axes and parameters ----

    def axis(self, name: str, extent: Dim) -> Dim:
        """Declare an axis; 0 when its only index is 0."""
        if extent == 1:
            return 0
        self.facts.declare(name, extent)
        return symbol(name)

    def param(self, value: Value, *, is_written: bool = False) -> int:
        """The number of the parameter that is `value`'s buffer."""
        if value in self.values:
            index = self.values.index(value)
            if is_written and not self.params[index].is_written:
                old = self.params[index]
                self.params[index] = Param(old.type, True, old.encoding)
            return index
        is_constant = self.graph.is_weight(value)
        type, encoding = value.type, self.encodings.get(value, ROWS)
        if type.dtype.is_packed:
            if is_written or not is_constant:
                raise UnsupportedOp(
                    f"elements of {type.dtype} are read from weights, and stored nowhere else",
                    where=(value.node and value.node.loc) or value.name or "",
                    facts=f"{type} shares bytes, which two threads cannot write",
                    fix="cast it to u8 or i8 first",
                )
            type, encoding = encoding.stored(type), ROWS
        packed = value.dtype if value.dtype.is_packed else None
        self.values.append(value)
        self.params.append(Param(type, is_written, encoding, is_constant, packed))
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

    def load(self, value: Value, index: tuple[Dim, ...]) -> Element:
        """A load of a parameter; of elements that share bytes, the bits of one of them."""
        number = self.param(value)
        encoding = self.encodings.get(value, ROWS)
        if encoding.is_panel and self.keep_plain:
            encoding = ROWS
        offset, bit = encoding.place(value.type, index)
        dtype = widened(self.params[number].type.dtype)
        load = Load(number, offset, dtype, self.indirect_of(offset))
        if not value.dtype.is_packed:
            return load
        shift = Index(bit, i32, self.indirect_of(bit))
        return _code(Apply("shift_right", (Cast(load, i32), shift), i32), value.dtype)

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
        return symbol(name)

    # ---- checks ----

    def checked(
        self,
        element: Element,
        node: Node,
        operand: Value | None,
        size: Dim | None,
        *,
        wraps: bool = False,
    ) -> Element:
        """`element`, which `node` takes as an index or (size None) as a divisor.

        It is of `operand`, or (None) computed in the node. Behind a check, unless no element can be
        a fault.
        """
        if operand is None:
            is_proved = False
        elif size is None:
            is_proved = self.ranges.is_nonzero(operand)
        else:
            is_proved = self.ranges.inside(operand, size)
        if is_proved:
            return element
        number = self._checks.setdefault((node, operand), len(self.checks))
        if number == len(self.checks):
            self.checks.append(DataCheck(node.op.name, node.loc, wraps, size is None))
        return Check(element, size, wraps, number, element.dtype)

    def _inside(self, node: Node, index: At) -> Element:
        if node.op.tree is not None:
            return self._scalar(node, index)
        if node.op.index_map is None:
            raise UnsupportedOp(
                f"{node.op.name} cannot be part of this kernel",
                where=node.loc or "",
                facts=f"beside {', '.join(sorted({n.op.name for n in self.nodes}))}",
                fix="partition it alone, or decompose it first",
            )
        at = _Place(self, node)
        element = self._mapped(node, map_index(node, at, index))
        for size, checked in at.unproved:
            # of an empty axis nothing may be read: the checked index stands in, 0 and recorded
            element = self.select(0, size, element, Cast(checked, element.dtype))
        return element

    def _mapped(self, node: Node, mapped: Mapped) -> Element:
        """What an index map gave, as an element."""
        match mapped:
            case Read(operand, index):
                return self.element(node.operands[operand], index)
            case Fill(value):
                return Const(value, widened(node.results[0].dtype))
            case Number(value):
                return Index(value, widened(node.results[0].dtype), self.indirect_of(value))
            case Checked(operand, index, size, wraps):
                value = node.operands[operand]
                return self.checked(self.element(value, index), node, value, size, wraps=wraps)
            case Choose(lhs, rhs, then, other):
                otherwise = self._mapped(node, other)
                return self.select(lhs, rhs, self._mapped(node, then), otherwise)

    def select(self, lhs: Dim, rhs: Dim, then: Element, other: Element) -> Select:
        """`then` where lhs < rhs, else `other`."""
        return Select(lhs, rhs, then, other, then.dtype, self.indirect_of(lhs, rhs))

    def _scalar(self, node: Node, index: At) -> Element:
        operands = {
            name: self.element(v, broadcast_index(index, v.type))
            for name, v in zip(node.op.operands, node.operands)
        }
        tree, dtype = node.op.tree, node.results[0].dtype
        assert tree is not None
        if tree.fn == "arg":
            return cast(operands[tree.value], node.operands[0].dtype, dtype)

        def divisor(tree: Scalar, element: Element) -> Element:
            if tree.fn != "arg":
                return self.checked(element, node, None, None)
            value = node.operands[node.op.operands.index(tree.value)]
            return self.checked(element, node, value, None)

        compute = widened(node.operands[-1].dtype)
        return build_scalar(tree, operands, node.attrs, compute, divisor)


class _Place(IndexContext):
    """Where an index map of one node is asked: lookups become indirect symbols."""

    def __init__(self, inliner: Inliner, node: Node):
        self.inliner, self.node = inliner, node
        self.result = node.results[0].type
        self.unproved: list[tuple[Dim, Element]] = []  # lookups of axes that may be empty

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return self.inliner.facts

    def lookup(self, operand: int, index: At, size: Dim) -> Dim:
        value = self.node.operands[operand]
        element = self.inliner.element(value, index)
        checked = self.inliner.checked(element, self.node, value, size)
        if checked is not element and not self.inliner.graph.facts.proved_le(1, size):
            self.unproved.append((size, checked))
        return self.inliner.indirect_symbol(checked)


def _code(bits: Element, dtype: DType) -> Element:
    """The value of the lowest bits of an i32 as an element of `dtype`."""
    code = Apply("and", (bits, Const(2**dtype.bits - 1, i32)), i32)
    if dtype.kind == "uint":
        return code
    sign = Const(1 << (dtype.bits - 1), i32)
    return Apply("sub", (Apply("xor", (code, sign), i32), sign), i32)


def cast(element: Element, source: DType, dtype: DType) -> Element:
    """Conversion from a value stored as `source`: nothing where its widened dtype is kept."""
    if dtype == source or (dtype == f32 and widened(source) == f32):
        return element
    return _code(Cast(element, i32), dtype) if dtype.is_packed else Cast(element, dtype)


def build_scalar(
    tree: Scalar,
    operands: dict[str, Element],
    attrs: Mapping[str, Any],
    dtype: DType,
    divisor: Callable[[Scalar, Element], Element] | None = None,
) -> Element:
    """A scalar tree with operands put in. Constants take the dtype of what they meet.

    `divisor` makes an integer that is divided by fit for it.
    """
    match tree.fn:
        case "arg":
            return operands[tree.value]
        case "attr":
            return Const(attrs[tree.value], dtype)
        case "const":
            return Const(tree.value, dtype)
    args = [build_scalar(a, operands, attrs, dtype, divisor) for a in tree.args]
    if tree.fn in DIVISIONS and divisor is not None and args[1].dtype.is_integer:
        args[1] = divisor(tree.args[1], args[1])
    result = bool_ if tree.fn in PREDICATES else args[-1].dtype
    return Apply(tree.fn, tuple(args), result)


def combination(combine: Combine, x: Element, y: Element) -> Element:
    """`combine` of what is earlier, x, and what is later, y, in the dtype of both."""
    return build_scalar(combine.tree, {"x": x, "y": y}, {}, x.dtype)
