"""From an ONNX model to a graph and its weights."""

import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TypeProto, ValueInfoProto

from ...ir.dim import Dim, Symbol, substitute, symbols_of
from ...ir.dim import symbol as make_symbol
from ...ir.dim_text import parse_dim
from ...ir.errors import (
    DimError,
    OptionError,
    ParseError,
    ShapeError,
    TilewrightError,
    UnsupportedModel,
    listed,
    shown,
)
from ...ir.graph import Value
from ...ir.lazy_arrays import LazyArray, LazyArrays
from ...ir.signature import Constant, Container, Input, Output, Signature, Tree
from ..imported import Imported, proved
from . import ops  # noqa: F401  fills the tables
from .checks import checked_model
from .functions import opsets
from .importer import POISON, Importer, Model
from .known import Known, OnnxBuilder
from .model_file import ModelFile, Source
from .narrowing import narrowed
from .packed import is_bytes, widened
from .scope import NameScope
from .tensors import ELEMENT_TYPES, dtype_of_element

MAX_NARROWED = 8  # dims whose ranges are narrowed
_UNKNOWN = object()  # a shape that is not given, where None is one of no tensor
_FIX = "give the sizes that do not fit together as numbers: shapes={'input': (1, 3, 224, 224)}"


class NeedsInputs(UnsupportedModel):
    """The numbers of some inputs decide what the graph is; `names` are theirs."""

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        super().__init__(
            "the numbers of some inputs are needed to import the model",
            facts=f"sizes, axes or counts come from {', '.join(map(shown, names))}",
            fix="give them: values={name: array}; or call the compiled model, which makes a program"
            " for each value",
        )


@dataclass(frozen=True)
class ImportedOnnx(Imported):
    """An ONNX model as a graph; `inputs` and `outputs` are the model's own names, in order.

    Those of int4 and the like are int8 and uint8 in the graph, coded floats uint8.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def import_onnx(
    source: Source | ModelFile,
    *,
    shapes: Mapping[str, Any] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    name: str = "main",
    strict: bool = False,
) -> ImportedOnnx:
    """Import the graph of an ONNX file (a path), an onnx.ModelProto, or what `checked_model` gave.

    Axes that the model names are dims, shared by name; axes without a name or size are dims of
    their own. `shapes` gives inputs shapes in place of the declared ones, of numbers and names of
    dims; a list of shapes to a sequence, None to an optional that is left out. `values` gives
    inputs numbers: they are compiled in as constants. Weights are read when they are looked up.
    What no kernel computes (ai.onnx.ml, Det) is left to ONNX's reference or NumPy, as a call of the
    host; with `strict` it is unsupported.
    Raises CheckpointError for a damaged file, UnsupportedOp (one table of all), UnsupportedModel,
    ShapeError or DimError; NeedsInputs where only the numbers of inputs tell what the graph is.
    """
    file = source if isinstance(source, ModelFile) else checked_model(source)
    ranges: dict[str, Symbol] = {}
    while True:
        model = Model(file, strict)
        job = _ModelImport(model, dict(shapes or {}), dict(values or {}), name, ranges)
        try:
            return job.run()
        except ShapeError:
            better = narrowed(job.model.unfit, job.declared)
            if better is None or len(ranges) == MAX_NARROWED:
                raise
            ranges = {**ranges, better.name: better}


def declared_shapes(file: ModelFile) -> dict[str, tuple[int | str, ...] | None]:
    """What the model declares of its inputs: shapes of sizes and names, None where it has none.

    A size that is not known is the empty name. Initializers that are listed as inputs are none.
    """
    stored = {tensor.name for tensor in file.proto.graph.initializer}
    return {
        value.name: _declared(value.type)
        for value in file.proto.graph.input
        if value.name not in stored
    }


def packed_outputs(file: ModelFile) -> dict[int, np.dtype]:
    """Which outputs the model declares of a dtype that programs have as bytes, and of which."""
    kinds = {
        number: output.type.tensor_type.elem_type
        for number, output in enumerate(file.proto.graph.output)
        if output.type.tensor_type.elem_type in ELEMENT_TYPES.values()
    }
    dtypes = {number: dtype_of_element(kind) for number, kind in kinds.items()}
    return {number: dtype.numpy for number, dtype in dtypes.items() if is_bytes(dtype)}


def _declared(type: TypeProto) -> tuple[int | str, ...] | None:
    kind = type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param
        for d in kind.shape.dim
    )


class _ModelImport:
    """The state of importing one model."""

    def __init__(
        self,
        model: Model,
        shapes: dict[str, Any],
        values: dict[str, np.ndarray],
        name: str,
        ranges: Mapping[str, Symbol],
    ):
        self.model, self.file, self.graph = model, model.file, model.file.proto.graph
        self.shapes, self.values = shapes, values
        self.builder = OnnxBuilder(name)
        self.arguments: dict[str, Tree] = {}
        self.ranges = ranges  # of dims, narrower than any size
        self.declared: dict[str, Symbol] = {}  # dims as the model names them, with their ranges
        self.problems: list[TilewrightError] = []

    def run(self) -> ImportedOnnx:
        scope = NameScope(opsets(self.file.proto))
        self.model.notes += [
            f"dim {s.name} is taken to be in {s.span}"
            + (f", a multiple of {s.multiple}" if s.multiple > 1 else "")
            + ": other sizes do not go together"
            for s in self.ranges.values()
        ]
        stored = self.file.initializers()
        scope.names.update((n, Known.stored(a, n)) for n, a in stored.items())
        inputs = [value for value in self.graph.input if value.name not in stored]
        self._check_given([value.name for value in inputs])
        for value in inputs:
            scope.names[value.name] = self._input(value)
        Importer(self.model, self.builder).run(self.graph.node, scope)
        self.model.missing.raise_all("operator", "replace them in the model by supported ones")
        if self.model.wanted:
            raise NeedsInputs([v.name for v in inputs if v.name in self.model.wanted])
        results, leaves = self._results(scope)
        b = self.builder
        graph, stored = widened(b.graph(results), b.stored)
        graph = proved(graph, _FIX)
        used = {operand for node in graph.nodes for operand in node.operands} | set(graph.outputs)
        kept = [w for w in graph.weights if w in used]
        return ImportedOnnx(
            graph.replace(weights=tuple(kept)),
            LazyArrays({w.name or "": stored[w.name or ""] for w in kept}),
            LazyArrays({}),
            Signature(tuple(self.arguments.values()), {}, Container("list", tuple(leaves))),
            tuple(self.model.notes),
            tuple(self.arguments),
            tuple(output.name for output in self.graph.output),
        )

    # ---- inputs ----------------------------------------------------------------------------

    def _check_given(self, names: list[str]) -> None:
        unknown = [n for n in (*self.shapes, *self.values) if n not in names]
        if unknown:
            raise OptionError(
                f"shapes or values are given for {listed(list(map(shown, unknown)), ', ')}",
                facts=f"the model's inputs are {listed(list(map(shown, names)), ', ')}",
            )

    def _input(self, value: ValueInfoProto) -> Any:
        name, where = value.name, f"input {shown(value.name)}"
        if name in self.values:
            dtype = dtype_of_element(value.type.tensor_type.elem_type, where)
            array = np.asarray(self.values[name])
            if array.dtype != dtype.numpy:
                raise ShapeError(
                    f"the numbers given are {array.dtype}", where=where, facts=f"it is {dtype}"
                )
            self.arguments[name] = Constant(array)
            return Known.stored(LazyArray(array.shape, dtype, lambda: array))
        given = self.shapes.get(name, _UNKNOWN)
        result, self.arguments[name] = self._argument(value.type, name, given, where)
        if isinstance(result, Value):
            self.model.inputs[result] = name
        return result

    def _argument(self, type: TypeProto, name: str, given: Any, where: str) -> tuple[Any, Tree]:
        """What an input of a type is here, and how it is taken from a call.

        A sequence is a list of inputs, as many as shapes are given; an optional that is given no
        shape is None.
        """
        kind = type.WhichOneof("value")
        if kind == "optional_type":
            if given is None:
                return None, Constant(None)
            return self._argument(type.optional_type.elem_type, name, given, where)
        if kind == "sequence_type":
            if given is _UNKNOWN:
                raise DimError(
                    "how many tensors an input has is not known",
                    where=where,
                    fix="give a shape for each: shapes={name: [(1, 3), (2, 3)]}",
                )
            element = type.sequence_type.elem_type
            parts = [self._argument(element, name, shape, where) for shape in given]
            return [value for value, _ in parts], Container("list", tuple(t for _, t in parts))
        if kind != "tensor_type":
            raise UnsupportedModel(
                f"an input is no tensor but a {kind or 'nothing'}",
                where=where,
                fix="pass its parts as inputs of their own",
            )
        dtype = dtype_of_element(type.tensor_type.elem_type, where)
        ours = _identifier(name, {v.name or "" for v in self.builder.inputs})
        shape = self._shape(ours, _declared(type), given, where)
        return self.builder.input(ours, shape, dtype), Input(ours)

    def _shape(
        self, ours: str, declared: Sequence[int | str] | None, given: Any, where: str
    ) -> tuple[Dim, ...]:
        if given is _UNKNOWN and declared is None:
            raise DimError(
                "the number of axes of an input is not known",
                where=where,
                fix="give its shape: shapes={name: (1, 3)}",
            )
        if given is not _UNKNOWN and declared is not None and len(given) != len(declared):
            raise DimError(
                f"a shape of {len(given)} axes is given",
                where=where,
                facts=f"the model declares {len(declared)}",
            )
        sizes = declared if given is _UNKNOWN else given
        return tuple(self._dim(dim, f"{ours}_{axis}") for axis, dim in enumerate(sizes))

    def _dim(self, dim: int | str, otherwise: str) -> Dim:
        """A declared size: a number, a name (shared by name), a sum of names, or unknown."""
        if isinstance(dim, int) and dim >= 0:
            return dim
        found: Dim | None = None
        if isinstance(dim, str) and any(map(str.isalnum, dim)):  # "?" is no name
            try:
                found = parse_dim(dim)
            except (ParseError, ValueError):
                found = None
            if found is None or not all(map(_is_plain, symbols_of(found))):
                found = make_symbol(_identifier(dim, ()))
        if found is None or isinstance(found, int):
            found = make_symbol(_identifier(otherwise, self.builder.symbols))
        for name in symbols_of(found):
            known = self.declared.setdefault(name, self.ranges.get(name, Symbol(name)))
            step = known.multiple  # a dim of steps goes together with others, where this does not
            hi = None if known.hi is None else known.hi // step
            self.builder.symbols.setdefault(name, Symbol(name, -(-known.lo // step), hi))
            found = substitute(found, {name: make_symbol(name) * step})
        return found

    # ---- outputs ---------------------------------------------------------------------------

    def _results(self, scope: NameScope) -> tuple[list[Value], list[Tree]]:
        results: list[Value] = []
        leaves: list[Tree] = []
        for output in self.graph.output:
            value = scope.find(output.name)
            assert value is not POISON, "what is missing was told"
            leaves.append(self._leaf(value, results))
            if isinstance(value, Value):
                self._check_declared(output, value)
        return results, leaves

    def _leaf(self, value: Any, results: list[Value]) -> Tree:
        if value is None:
            return Constant(None)
        if isinstance(value, list | tuple):
            return Container("list", tuple(self._leaf(part, results) for part in value))
        results.append(value)
        return Output(len(results) - 1)

    def _check_declared(self, output: ValueInfoProto, value: Value) -> None:
        """ShapeError where the model says something else of an output than its nodes give."""
        kind = output.type.tensor_type
        if kind.elem_type and dtype_of_element(kind.elem_type, output.name) != value.dtype:
            raise ShapeError(
                "an output is of another type than the model declares",
                where=f"output {shown(output.name)}",
                facts=f"its nodes give {value.type}, declared is"
                f" {dtype_of_element(kind.elem_type)}",
            )
        if not kind.HasField("shape"):
            return
        declared = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        differs = len(declared) != value.type.rank or any(
            want is not None and isinstance(dim, int) and want != dim
            for want, dim in zip(declared, value.shape)
        )
        if differs:  # exporters are careless here, and other runtimes take such models too
            self.model.notes.append(
                f"output {output.name} is {value.type}; the model declares {declared}"
            )


def _is_plain(name: str) -> bool:
    return name.isascii() and name[0] != "_" and not keyword.iskeyword(name)


def _identifier(name: str, taken: Iterable[str]) -> str:
    """A name of ours for one of the model's, which may be any text."""
    clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    clean = clean.strip("_") or "x"
    if clean[0].isdigit() or clean in ("min", "max", "ceildiv") or keyword.iskeyword(clean):
        clean = f"d_{clean}"
    unique, number = clean, 1
    while unique in taken:
        number += 1
        unique = f"{clean}_{number}"
    return unique
