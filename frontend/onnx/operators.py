"""The tables of ONNX operators: how a row is entered, found, and what it is given.

A row imports one operator from one opset on. Its positional parameters are the operator's inputs,
None where one is left out; its keyword parameters the attributes, with ONNX's names and defaults,
`bool` where they are 0 or 1:

    @onnx_op("Gather", since=1)
    def _(call, data, indices, *, axis=0): ...

It returns a value, or a tuple of them: as many as it can give. `Declined` says why it cannot.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, NamedTuple, Protocol, get_args, get_origin

import numpy as np
from onnx import GraphProto, NodeProto

from ...ir import types
from ...ir.dim import Dim, Expr
from ...ir.facts import Facts
from ...ir.graph import Graph, Value
from ...ir.host_functions import register_function
from ...ir.op import normalize_axis
from ...ir.types import DType, Shape, TensorType
from ..declined import Declined
from .known import Known, OnnxBuilder
from .scope import NameScope

Handler = Callable[..., Any]
MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"


class Row(NamedTuple):
    """One row: from which opset it holds, what imports the operator, what that takes."""

    since: int
    handler: Handler
    attributes: Mapping[str, Any]  # and what they are: bool where 0 or 1
    inputs: tuple[Any, ...]  # classes of each
    others: Any  # and of all that come after these

    def checked(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes, flags as bools. TypeError for odd ones, and operands of other classes."""
        flags = {name: x for name, x in attributes.items() if self.attributes.get(name) is bool}
        odd = [f"{name} is {x}" for name, x in flags.items() if x not in (0, 1)]
        if odd:
            raise TypeError(f"{', '.join(odd)}, neither 0 nor 1")
        for number, x in enumerate(operands):
            kind = self.inputs[number] if number < len(self.inputs) else self.others
            if not isinstance(x, kind):
                what = {type(None): "left out", list: "a sequence"}.get(type(x), "a tensor")
                raise TypeError(f"input {number} is {what}")
        return {**attributes, **{name: bool(x) for name, x in flags.items()}}


ROWS: dict[tuple[str, str], list[Row]] = {}  # (domain, operator) -> rows by opset


def onnx_op(
    *names: str, since: int = 1, domain: str = "", attributes: Mapping[str, Any] | None = None
) -> Callable[[Handler], Handler]:
    """Decorator: the function imports these operators of a domain, from opset `since` on.

    `attributes` are those that it takes besides its keyword parameters: `bool`, or anything else.
    """

    def register(handler: Handler) -> Handler:
        _, *parameters = inspect.signature(handler).parameters.values()
        keywords = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
        inputs = [_class(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        others = [_class(p) for p in parameters if p.kind is p.VAR_POSITIONAL]
        for name in names:
            rows = ROWS.setdefault((domain, name), [])
            if any(row.since == since for row in rows):
                raise ValueError(f"{domain or 'ai.onnx'}.{name} since {since} is entered twice")
            taken = {**(attributes or {}), **keywords}
            rows.append(Row(since, handler, taken, tuple(inputs), *(others or [object])))
            rows.sort(key=lambda row: row.since)
        return handler

    return register


def _class(parameter: inspect.Parameter) -> Any:
    """What an operand's class may be, for `isinstance`: a tensor, where nothing is said."""

    def of(annotation: Any) -> Any:
        if isinstance(annotation, UnionType):
            return tuple(map(of, get_args(annotation)))
        return object if annotation is Any else get_origin(annotation) or annotation

    return Value if parameter.annotation is parameter.empty else of(parameter.annotation)


REFUSED: dict[tuple[str, str], str] = {}  # (domain, operator or "" for all) -> the reason


def refuses(reason: str, *names: str, domain: str = "") -> None:
    """Enter operators that are known and not imported; without names, all of the domain."""
    REFUSED.update({(domain, name): reason for name in names or ("",)})


def why_refused(domain: str, name: str) -> str:
    """Why an operator without a row has none; empty for one that is not known."""
    return REFUSED.get((domain, name)) or REFUSED.get((domain, ""), "")


def find_row(domain: str, name: str, version: int) -> Row | None:
    """The newest row that an opset has."""
    fitting = [row for row in ROWS.get((domain, name), ()) if row.since <= version]
    return fitting[-1] if fitting else None


class NeedsValue(Declined):
    """A row needs the numbers of graph inputs: their names are in `importer.wanted`."""


@dataclass
class Region:
    """A sub-graph that is being made: its builder, and what it gives."""

    builder: OnnxBuilder
    outputs: list[Value]


class Importing(Protocol):
    """What a call asks of the importer: see `importer.Importer`."""

    @property
    def strict(self) -> bool: ...
    def constant_of(self, value: Value) -> np.ndarray | None: ...
    def require_input(self, value: Value) -> None: ...
    def sizes_of(self, value: Value) -> tuple[Dim, ...]: ...
    def inline(
        self, graph: GraphProto, scope: NameScope, arguments: Sequence[Any]
    ) -> list[Any]: ...
    def region(
        self, name: str, graph: GraphProto, scope: NameScope, formals: Sequence[Any]
    ) -> Region: ...


@dataclass
class Call:
    """One operator being imported: the builder, its opset, and helpers for operands."""

    b: OnnxBuilder
    importer: Importing
    scope: NameScope
    node: NodeProto
    version: int  # the model's opset of the operator's domain

    @property
    def facts(self) -> Facts:
        """Queries over dims."""
        return self.b.facts

    @property
    def num_outputs(self) -> int:
        """How many outputs the node names, the ones left out in between counted."""
        return len(self.node.output)

    # ---- numbers ---------------------------------------------------------------------------

    def constant(self, x: Value) -> np.ndarray:
        """The numbers of an operand; Declined where they depend on what the model is given."""
        array = self.importer.constant_of(x)
        if array is None:
            self.importer.require_input(x)
            raise Declined("an operand that has to be known when the model is imported")
        return array

    def is_known(self, x: Value) -> bool:
        """Whether `constant` has the numbers of an operand."""
        return self.importer.constant_of(x) is not None

    def sizes(self, x: Value) -> tuple[Dim, ...]:
        """The elements of an operand that holds sizes, places or counts, as dims.

        What only a run can know becomes a dim that is read from the tensor, 0 or more.
        """
        return self.importer.sizes_of(x)

    def ints(self, x: Value | Sequence[int] | None) -> tuple[int, ...] | None:
        """Numbers that were an attribute once and are an operand now; None where left out."""
        if x is None or not isinstance(x, Value):
            return None if x is None else tuple(x)
        return tuple(int(number) for number in self.constant(x).reshape(-1))

    def static(self, dim: Dim, what: str) -> int:
        """A dim that must be a number here."""
        if isinstance(dim, Expr):
            raise Declined(f"{what} is {dim}: must be a known number")
        return dim

    # ---- operands --------------------------------------------------------------------------

    def number(self, x: float | int | bool, dtype: DType) -> Value:
        """A number without axes."""
        return self.b.constant(x if not dtype.is_float else float(x), dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        """X in another dtype; x itself when it has that one."""
        return x if x.dtype == dtype else self.b.cast(x, dtype=dtype)

    def reshape(self, x: Value, shape: Shape) -> Value:
        """X under another shape; x itself when it has that shape."""
        return x if x.shape == tuple(shape) else self.b.reshape(x, shape=tuple(shape))

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """X broadcast to a shape; x itself when it has that shape."""
        return x if x.shape == tuple(shape) else self.b.broadcast_to(x, shape=tuple(shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """X with its axes in another order; x itself when the order stays."""
        is_same = tuple(perm) == tuple(range(x.type.rank))
        return x if is_same else self.b.transpose(x, perm=tuple(perm))

    def axis(self, axis: int, x: Value) -> int:
        """An axis of x, counted from the front."""
        return normalize_axis(axis, x.type.rank)

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Axes counted from the front, each once."""
        found = tuple(normalize_axis(axis, rank) for axis in axes)
        if len(set(found)) < len(found):
            raise Declined(f"the axes {list(axes)} name one twice")
        return found

    def computed(self, x: Value) -> Value:
        """X in a dtype that is computed in: narrow floats in f32."""
        return self.cast(x, types.f32) if x.dtype.is_float and x.dtype.bits < 32 else x

    def called(
        self,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Value],
        results: Sequence[TensorType],
    ) -> Any:
        """What a function makes of arrays, on the host; equal names are one function.

        Declined where all of the model has to run in kernels.
        """
        if self.importer.strict:
            raise Declined(f"it would be a call of {name}, which strict=True forbids")
        register_function(name, function)
        return self.b.call(*operands, function=name, results=tuple(results))

    # ---- sub-graphs ------------------------------------------------------------------------

    def inline(self, graph: GraphProto, arguments: Sequence[Any]) -> list[Any]:
        """What a sub-graph gives for these values, imported into the graph around it."""
        return self.importer.inline(graph, self.scope, arguments)

    def region(self, name: str, graph: GraphProto, formals: Sequence[Any]) -> Region:
        """A sub-graph of its own, as regions own them.

        `formals` are what it is called with: a type makes an input of it, a value stands for
        itself. Values of the graph around it become inputs as they are used: see `joined`.
        """
        return self.importer.region(name, graph, self.scope, formals)

    def joined(self, *regions: Region) -> tuple[list[Graph], list[Value]]:
        """The graphs of regions that take the same operands, and these: what all of them captured.

        Each takes its own formals first.
        """
        outputs = [[r.builder.real(v) for v in r.outputs] for r in regions]
        captured = list(dict.fromkeys(v for r in regions for v in r.builder.captured))
        graphs = []
        for region, results in zip(regions, outputs):
            b = region.builder
            formals = [v for v in b.inputs if v not in b.captured.values()]
            b.inputs = formals + [b.real(v) for v in captured]
            graphs.append(b.graph(results))
        return graphs, captured


def known(x: Any, dtype: DType = types.i64) -> Known:
    """A result that is known: numbers or dims."""
    is_array = isinstance(x, np.ndarray) and x.dtype != object
    return Known.of_array(x) if is_array else Known.of_dims(x, dtype)
