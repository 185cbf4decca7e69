"""From an ONNX model to a graph and its weights."""

import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TypeProto, ValueInfoProto

from ...ir.dim import Dim, Symbol, symbols_of
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
from ...ir.lazy_arrays import LazyArrays
from ...ir.signature import Constant, Container, Input, Output, Signature, Tree
from ..imported import Imported, proved
from . import ops  # noqa: F401  fills the tables
from .checks import check_model
from .functions import opsets
from .importer import POISON, Importer, Model
from .known import Known, OnnxBuilder
from .model_file import ModelFile, Source, open_model
from .scope import Scope
from .tensors import dtype_of_element

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
    """An ONNX model as a graph; `inputs` and `outputs` are the model's own names, in order."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def import_onnx(
    source: Source | ModelFile,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
    name: str = "main",
) -> ImportedOnnx:
    """Import the graph of an ONNX file (a path) or of an onnx.ModelProto.

    Axes that the model names are dims, shared by name; axes without a name or size are dims of
    their own. `shapes` gives inputs sizes in place of the declared ones. `values` gives inputs
    numbers: they are compiled in as constants. Weights are read when they are looked up.
    Raises CheckpointError for a damaged file, UnsupportedOp (one table of all), UnsupportedModel,
    ShapeError or DimError; NeedsInputs where only the numbers of inputs tell what the graph is.
    """
    file = source if isinstance(source, ModelFile) else open_model(source)
    check_model(file.proto, str(file.path or ""))
    return _ModelImport(file, dict(shapes or {}), dict(values or {}), name).run()


class _ModelImport:
    """The state of importing one model."""

    def __init__(
        self,
        file: ModelFile,
        shapes: dict[str, Sequence[int]],
        values: dict[str, np.ndarray],
        name: str,
    ):
        self.file, self.graph = file, file.proto.graph
        self.shapes, self.values = shapes, values
        self.model = Model(file)
        self.builder = OnnxBuilder(name)
        self.arguments: dict[str, Tree] = {}
        self.problems: list[TilewrightError] = []

    def run(self) -> ImportedOnnx:
        scope = Scope(opsets(self.file.proto))
        stored = self.file.initializers()
        scope.names.update((n, Known.stored(a, n)) for n, a in stored.items())
        inputs = [value for value in self.graph.input if value.name not in stored]
        self._check_given([value.name for value in inputs])
        for value in inputs:
            scope.names[value.name] = self._input(value)
        Importer(self.model, self.builder).run(self.graph.node, scope)
        self.model.missing.raise_all()
        if self.model.wanted:
            raise NeedsInputs([v.name for v in inputs if v.name in self.model.wanted])
        results, leaves = self._results(scope)
        b = self.builder
        graph = proved(b.graph(results), _FIX)
        used = {operand for node in graph.nodes for operand in node.operands} | set(graph.outputs)
        kept = [w for w in graph.weights if w in used]
        return ImportedOnnx(
            graph.replace(weights=tuple(kept)),
            LazyArrays({w.name or "": b.stored[w.name or ""] for w in kept}),
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
        if value.type.WhichOneof("value") != "tensor_type":
            raise UnsupportedModel(
                f"an input is no tensor but a {value.type.WhichOneof('value') or 'nothing'}",
                where=where,
                fix="pass its parts as inputs of their own",
            )
        kind = value.type.tensor_type
        dtype = dtype_of_element(kind.elem_type, where)
        if name in self.values:
            array = np.asarray(self.values[name])
            if array.dtype != dtype.numpy:
                raise ShapeError(
                    f"the numbers given are {array.dtype}", where=where, facts=f"it is {dtype}"
                )
            self.arguments[name] = Constant(array)
            return Known.of_array(array)
        ours = _identifier(name, {v.name or "" for v in self.builder.inputs})
        result = self.builder.input(ours, self._shape(name, ours, kind, where), dtype)
        self.arguments[name] = Input(ours)
        self.model.inputs[result] = name
        return result

    def _shape(self, name: str, ours: str, kind: TypeProto.Tensor, where: str) -> tuple[Dim, ...]:
        given = self.shapes.get(name)
        if not kind.HasField("shape"):
            if given is None:
                raise UnsupportedModel(
                    "the number of axes of an input is not known",
                    where=where,
                    fix="give its shape: shapes={name: (1, 3)}",
                )
            return tuple(given)
        axes = kind.shape.dim
        if given is not None and len(given) != len(axes):
            raise DimError(
                f"a shape of {len(given)} axes is given",
                where=where,
                facts=f"the model declares {len(axes)}",
            )
        return tuple(
            given[axis] if given is not None else self._dim(dim, f"{ours}_{axis}")
            for axis, dim in enumerate(axes)
        )

    def _dim(self, dim: Any, otherwise: str) -> Dim:
        """A declared size: a number, a name (shared by name), a sum of names, or unknown."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return dim.dim_value
        found: Dim | None = None
        if dim.dim_param:
            try:
                found = parse_dim(dim.dim_param)
            except (ParseError, ValueError):
                found = None
            if found is None or not all(map(_is_plain, symbols_of(found))):
                found = make_symbol(_identifier(dim.dim_param, ()))
        if found is None or isinstance(found, int):
            found = make_symbol(_identifier(otherwise, self.builder.symbols))
        for name in symbols_of(found):
            self.builder.symbols.setdefault(name, Symbol(name))
        return found

    # ---- outputs ---------------------------------------------------------------------------

    def _results(self, scope: Scope) -> tuple[list[Value], list[Tree]]:
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
