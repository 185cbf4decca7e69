"""Walks an ONNX graph and builds ours: one row an operator, functions by what they stand for.

Names are resolved in scopes: a sub-graph sees the names of the graph around it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from ...ir import types
from ...ir.dim import Dim, symbol
from ...ir.errors import CheckpointError, ShapeError, UnsupportedModel, shown
from ...ir.evaluate import evaluate
from ...ir.graph import Graph, Node, Value
from ...ir.lazy_arrays import LazyArrays
from ..declined import Declined
from ..missing import Missing
from .functions import FunctionBody, body_of, is_defined
from .known import Known, OnnxBuilder
from .model_file import ModelFile, domain_of
from .operators import Call, NeedsValue, Region, find_row, why_refused
from .scope import NameScope
from .sizes import computed

POISON = object()  # what an operator gives that could not be imported
MAX_NODES = 1_000_000  # with those of functions as often as they are called
MAX_NESTING = 50  # of sub-graphs and functions in one another
MAX_ASKED = 64  # elements of an input whose numbers may be asked for
MAX_RANK = 32  # of arrays that all of NumPy's functions take
_FOLDED = 20_000  # nodes that are evaluated to know one operand,
_FOLDED_SIZE = 1 << 20  # and elements of what each of them gives

# what unfit attributes and operands raise in a row, which takes them as the file has them
_UNFIT = (TypeError, ValueError, IndexError, KeyError, OverflowError, ZeroDivisionError)


@dataclass
class Model:
    """What the graphs of one model share while it is imported."""

    file: ModelFile
    strict: bool = False  # no calls of the host
    missing: Missing = field(default_factory=Missing)
    wanted: set[str] = field(default_factory=set)  # inputs whose numbers rows ask for
    inputs: dict[Value, str] = field(default_factory=dict)  # inputs of the model, by ONNX's names
    notes: list[str] = field(default_factory=list)
    unfit: list[Dim] = field(default_factory=list)  # sizes of what last did not go together
    count: int = 0  # of nodes so far


class Importer:
    """Imports nodes into one graph of ours."""

    def __init__(self, model: Model, builder: OnnxBuilder):
        self.model, self.builder = model, builder
        self._constants: dict[Value, np.ndarray | None] = {}
        self._sizes: dict[Value, tuple[Dim, ...]] = {}

    @property
    def strict(self) -> bool:
        """Whether all of the model has to run in kernels."""
        return self.model.strict

    def run(self, nodes: Iterable[NodeProto], scope: NameScope) -> None:
        """Import nodes in order; what they give is named in the scope."""
        if scope.depth > MAX_NESTING:
            raise UnsupportedModel(f"functions or sub-graphs are nested over {MAX_NESTING} deep")
        for node in nodes:
            self.model.count += 1
            if self.model.count > MAX_NODES:
                raise UnsupportedModel(f"the model has over {MAX_NODES} nodes")
            where = f"{node.op_type} {node.name or next(iter(node.output), '')}".rstrip()
            try:
                with self.builder.at(where):
                    results = self._import(node, scope, where)
            except Declined as reason:
                if not isinstance(reason, NeedsValue):  # whose numbers are asked for
                    self._miss(node, where, str(reason))
                results = [POISON] * len(node.output)
            for name, result in zip(node.output, results):
                if name:
                    scope.names[name] = result

    def _miss(self, node: NodeProto, where: str, reason: str) -> None:
        named = [domain_of(node), node.op_type]
        self.model.missing.add(".".join(filter(None, named)), where, reason)

    # ---- one node --------------------------------------------------------------------------

    def _import(self, node: NodeProto, scope: NameScope, where: str) -> Sequence[Any]:
        domain = domain_of(node)
        operands = [scope.find(name) if name else None for name in node.input]
        version = scope.versions.get(domain)
        if version is None:
            raise Declined(f"its domain {domain!r} is not among the model's opsets")
        attributes = {a.name: a for a in node.attribute}
        for name, attribute in attributes.items():
            if attribute.ref_attr_name:
                attributes[name] = scope.attributes.get(attribute.ref_attr_name)
        given = {name: a for name, a in attributes.items() if a is not None}
        is_function = (domain, node.op_type, node.overload) in self.model.file.functions
        row = None if is_function else find_row(domain, node.op_type, version)
        if any(x is POISON for x in operands):
            if row is None and not is_function and not is_defined(domain, node.op_type, version):
                raise Declined(why_refused(domain, node.op_type))  # told with what else is missing
            return [POISON] * len(node.output)
        values = {}
        if not is_function:
            values = {name: self._attribute(a) for name, a in given.items()}
        call = Call(self.builder, self, scope, node, version)
        try:
            if row is not None:
                values = row.checked(operands, values)
            result = computed(call, operands, values) if not domain and not is_function else None
            if result is None and row is None:
                body = body_of(self.model.file, node, version, operands, given)
                if body is None:
                    raise Declined(why_refused(domain, node.op_type))
                return self._expand(body, node, operands, given, scope)
            if result is None and row is not None:
                unknown = values.keys() - row.attributes.keys()
                if unknown:
                    raise Declined(f"the attribute {', '.join(sorted(unknown))}")
                result = row.handler(call, *operands, **values)
        except ShapeError as error:
            self.model.unfit += _sizes_in(operands)
            raise ShapeError(
                error.what, where=error.where or where, facts=error.facts, fix=error.fix
            ) from error
        except _UNFIT as error:
            self.model.unfit += _sizes_in(operands)
            raise ShapeError(
                f"{node.op_type}: its inputs or attributes do not fit: {error}",
                where=where,
                facts=_described(operands, values),
                fix="the model is damaged, or was made for an operator of another opset",
            ) from error
        results = result if isinstance(result, tuple) else (result,)
        if any(node.output[len(results) :]):
            raise Declined(f"output {len(results)}")
        return results

    def _attribute(self, attribute: AttributeProto) -> Any:
        """An attribute as Python has it; a tensor as a known value."""
        kind = AttributeProto.AttributeType
        match attribute.type:
            case kind.FLOAT:
                return attribute.f
            case kind.INT:
                return attribute.i
            case kind.STRING:
                return attribute.s.decode("utf-8", "replace")
            case kind.FLOATS:
                return tuple(attribute.floats)
            case kind.INTS:
                return tuple(attribute.ints)
            case kind.STRINGS:
                return tuple(s.decode("utf-8", "replace") for s in attribute.strings)
            case kind.TENSOR:
                array = self.model.file.array(attribute.t)
                if isinstance(array, str):
                    raise Declined(f"its attribute {attribute.name}: {array}")
                return Known.stored(array)
            case kind.GRAPH:
                return attribute.g
            case kind.TYPE_PROTO:
                return attribute.tp
        raise Declined(f"its attribute {attribute.name} is of a kind that is not read")

    def _expand(
        self,
        body: FunctionBody,
        node: NodeProto,
        operands: Sequence[Any],
        attributes: Mapping[str, AttributeProto],
        scope: NameScope,
    ) -> list[Any]:
        """A function's nodes in place of its call."""
        inner = NameScope(body.versions, attributes={**body.defaults, **attributes})
        inner.depth = scope.depth + 1
        missing = [None] * (len(body.inputs) - len(operands))
        for name, value in zip(body.inputs, [*operands, *missing]):
            inner.names[name] = value
        self.run(body.nodes, inner)
        asked = zip(body.outputs, node.output)
        return [inner.find(inside) if name else None for inside, name in asked]

    # ---- sub-graphs ------------------------------------------------------------------------

    def inline(self, graph: GraphProto, scope: NameScope, arguments: Sequence[Any]) -> list[Any]:
        """What a sub-graph gives for these values, as part of this graph."""
        inner = NameScope(scope.versions, scope, scope.attributes, depth=scope.depth + 1)
        for tensor in graph.initializer:
            inner.names[tensor.name] = self._initializer(graph, tensor)
        inner.names.update(zip((i.name for i in graph.input), arguments))
        self.run(graph.node, inner)
        return [inner.find(output.name) for output in graph.output]

    def _initializer(self, graph: GraphProto, tensor: Any) -> Known:
        array = self.model.file.array(tensor)
        if isinstance(array, str):
            raise CheckpointError(
                f"an initializer of the sub-graph {shown(graph.name)} cannot be read",
                facts=f"{shown(tensor.name)}: {array}",
            )
        return Known.stored(array, tensor.name)

    def region(
        self, name: str, graph: GraphProto, scope: NameScope, formals: Sequence[Any]
    ) -> Region:
        """A sub-graph with a builder of its own; `formals` are types of inputs, or values."""
        builder = OnnxBuilder(name, self.builder.symbols.values(), self.builder)
        inner = Importer(self.model, builder)
        arguments = [
            builder.input(f"x{i}", formal.shape, formal.dtype)
            if isinstance(formal, types.TensorType)
            else formal
            for i, formal in enumerate(formals)
        ]
        results = inner.inline(graph, scope, arguments)
        if any(result is POISON for result in results):
            raise NeedsValue("a part of it could not be imported")  # which is told of already
        return Region(builder, results)

    # ---- what is known ---------------------------------------------------------------------

    def constant_of(self, value: Value) -> np.ndarray | None:
        """The numbers of a value that depends on nothing but the file; None for another."""
        if isinstance(value, Known):
            return value.array
        if value not in self._constants:
            self._constants[value] = self._evaluated(value)
        return self._constants[value]

    def _evaluated(self, value: Value) -> np.ndarray | None:
        nodes, leaves = _producers(value)
        weights = self.builder.stored
        is_constant = len(nodes) <= _FOLDED and all(leaf.name in weights for leaf in leaves)
        if not nodes or not is_constant or not all(map(_is_folded, nodes)):
            return None
        graph = Graph("constant", {}, (), tuple(leaves), (), tuple(nodes), (value,))
        (array,), _ = evaluate(graph, {}, LazyArrays(weights).__getitem__, precision=None)
        return array

    def require_input(self, value: Value) -> None:
        """Ask for the numbers of the inputs that a value depends on, where these may be asked for.

        Raises NeedsValue if so.
        """
        nodes, found = _producers(value)
        leaves = [leaf for leaf in found if leaf.name not in self.builder.stored]
        if not leaves or any(node.op.kind == "call" for node in nodes):
            return
        names = [self.model.inputs.get(leaf) for leaf in leaves]
        if all(names) and all(map(_is_small, leaves)):
            self.model.wanted.update(name for name in names if name)
            raise NeedsValue("the numbers of an input are needed")

    def sizes_of(self, value: Value) -> tuple[Dim, ...]:
        """The elements of a tensor as dims: known, computed from shapes, or read when it runs."""
        if value.dtype.is_float:
            raise TypeError(f"sizes are whole numbers, and these are {value.type}")
        if isinstance(value, Known) and value.dims is not None:
            return tuple(value.dims.flat)
        if value not in self._sizes:
            self._sizes[value] = self._read_sizes(value)
        return self._sizes[value]

    def _read_sizes(self, value: Value) -> tuple[Dim, ...]:
        array = self.constant_of(value)
        if array is not None:
            return tuple(array.reshape(-1).tolist())
        self.require_input(value)
        count = value.type.numel
        if not isinstance(count, int):
            raise Declined(f"sizes are in a tensor of {value.type}: how many is not known")
        b = self.builder
        flat = b.reshape(b.cast(value, dtype=types.i64), shape=(count,))
        dims: list[Dim] = []
        for i in range(count):
            element = b.reshape(b.slice(flat, axis=0, start=i, stop=i + 1), shape=())
            name = b.late_dim("read")
            b.read_dim(element, binds=(name,))
            dims.append(symbol(name))
        return tuple(dims)


def _sizes_in(operands: Sequence[Any]) -> list[Dim]:
    """The sizes of operands, and those that they hold."""
    found: list[Dim] = []
    for x in operands:
        if isinstance(x, Value):
            found += x.shape
        if isinstance(x, Known) and x.lazy is None and x.dims is not None:
            found += x.dims.flat
    return found


def _is_small(value: Value) -> bool:
    """Whether shapes and counts may come in an input: few elements, or a row of integers."""
    count = value.type.numel
    is_row = value.type.rank <= 1 and value.dtype.is_integer
    return count <= MAX_ASKED if isinstance(count, int) else is_row


def _is_folded(node: Node) -> bool:
    """Whether a node may be evaluated while importing: it is small, and depends on no run."""
    sizes = [result.type.numel for result in node.results]
    if node.is_step or not all(isinstance(n, int) and n <= _FOLDED_SIZE for n in sizes):
        return False
    if max(v.type.rank for v in (*node.operands, *node.results)) > MAX_RANK:
        return False
    return node.op.name != "dim_value" or isinstance(node.attrs["value"], int)


def _producers(value: Value) -> tuple[list[Node], list[Value]]:
    """The nodes that a value is computed by, in order, and the arguments they begin with."""
    nodes: dict[Node, None] = {}
    leaves: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        at, is_done = stack.pop()
        if is_done:
            assert at.node is not None, "only results are visited twice"
            nodes[at.node] = None
        elif at not in seen:
            seen.add(at)
            if at.node is None:
                leaves.append(at)
                continue
            if len(seen) > _FOLDED:
                return [], [value]
            stack.append((at, True))
            stack += [(operand, False) for operand in at.node.operands]
    return list(nodes), leaves


def _described(operands: Sequence[Any], attributes: Mapping[str, Any]) -> str:
    parts = [str(x.type) if isinstance(x, Value) else shown(x) for x in operands]
    return f"inputs {', '.join(parts) or '(none)'}; attributes {shown(dict(attributes))}"
