"""Opens an ONNX model without reading its weights: the model's structure, and lazy arrays.

Invariant: nothing is read outside of the folder that the model is in.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
)

from ...ir.errors import CheckpointError, OptionError, listed, shown
from ...ir.lazy_arrays import LazyArray
from .tensors import stored_array
from .wire import ByteRange, damaged, split

Source: TypeAlias = str | Path | ModelProto


@dataclass
class ModelFile:
    """A model: its structure, and where the data of its weights is."""

    proto: ModelProto
    path: Path | None = None  # None for a model in memory
    places: Mapping[int, ByteRange] = field(default_factory=dict)  # raw data, by initializer
    _maps: dict[Path, memoryview] = field(default_factory=dict)

    @cached_property
    def functions(self) -> dict[tuple[str, str, str], FunctionProto]:
        """The model's own functions, by domain, name and overload."""
        return {(domain_of(f), f.name, f.overload): f for f in self.proto.functions}

    def initializers(self) -> dict[str, LazyArray]:
        """The arrays of the graph's initializers. CheckpointError lists all that is wrong."""
        arrays: dict[str, LazyArray] = {}
        problems = []
        for number, tensor in enumerate(self.proto.graph.initializer):
            array = self.array(tensor, self.places.get(number))
            if isinstance(array, str):
                problems.append(f"{shown(tensor.name)}: {array}")
            elif tensor.name in arrays:
                problems.append(f"{shown(tensor.name)} is there twice")
            else:
                arrays[tensor.name] = array
        if problems:
            raise CheckpointError(
                f"{len(problems)} initializer{'s' * (len(problems) > 1)} cannot be read",
                where=str(self.path or ""),
                facts=listed(problems),
                fix="export the model again; external data has to lie beside it",
            )
        return arrays

    def array(self, tensor: TensorProto, place: ByteRange | None = None) -> LazyArray | str:
        """A tensor of this model as an array, or what is wrong with it."""
        if place is not None:
            assert self.path is not None, "only files have places"
            part = partial(self._part, self.path, place)
            return stored_array(tensor, part, place.end - place.begin)
        if tensor.data_location != TensorProto.EXTERNAL:
            return stored_array(tensor, None, None)
        found = self._external(tensor)
        if isinstance(found, str):
            return found
        path, place = found
        return stored_array(tensor, partial(self._part, path, place), place.end - place.begin)

    def _part(self, path: Path, place: ByteRange) -> memoryview:
        return self._map(path)[place.begin : place.end]

    def _map(self, path: Path) -> memoryview:
        if path not in self._maps:
            self._maps[path] = _mapped(path)
        return self._maps[path]

    def external_files(self) -> dict[str, Path]:
        """The files that data of its tensors is in, by the names that the model has for them."""
        graphs = [self.proto.graph, *(g for node in all_nodes(self.proto) for g in graphs_of(node))]
        tensors = [tensor for graph in graphs for tensor in graph.initializer]
        tensors += [a.t for node in all_nodes(self.proto) for a in node.attribute]
        stored = [t for t in tensors if t.data_location == TensorProto.EXTERNAL]
        found = {_location(tensor): self._external(tensor) for tensor in stored}
        return {name: place[0] for name, place in found.items() if not isinstance(place, str)}

    def _external(self, tensor: TensorProto) -> tuple[Path, ByteRange] | str:
        """Where external data is, or what is wrong with how it is named."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = _location(tensor)
        if self.path is None:
            return f"its data is in the file {shown(location)}, and the model was given in memory"
        # files of a download may be links into one folder that holds the data of all of them
        folders = [self.path.parent.resolve(), self.path.resolve().parent]
        try:
            paths = [(folder / location).resolve() for folder in folders]
            path = next((path for path in paths if path.is_file()), paths[0])
            is_inside = any(map(path.is_relative_to, folders)) and not Path(location).is_absolute()
            size = path.stat().st_size if is_inside and path.is_file() else None
        except (OSError, ValueError) as error:
            return f"its data is in {shown(location)}: {error}"
        if not location or not is_inside:
            return f"its data is in {shown(location)}, outside of the model's folder"
        if size is None:
            return f"its data is in {shown(location)}, which is no file beside the model"
        numbers = [entries.get("offset", "0"), entries.get("length", str(size))]
        if not all(text.isascii() and text.isdigit() and len(text) < 20 for text in numbers):
            return f"its place in {shown(location)} is {shown(numbers)}"
        offset, length = map(int, numbers)
        if "length" not in entries:
            length = size - offset
        if length < 0 or offset + length > size:
            return f"it is at {offset} to {offset + length} of the {size} bytes of {location}"
        return path, ByteRange(offset, offset + length)


def _location(tensor: TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """The nodes of a model: those of its functions and of sub-graphs too."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        yield from _nodes_of(nodes)


def _nodes_of(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from _nodes_of(graph.node)


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The sub-graphs of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.AttributeType.GRAPH:
            yield attribute.g


def domain_of(proto: NodeProto | FunctionProto | OperatorSetIdProto) -> str:
    """The domain that a part of a model is of: ONNX's own, which has two names, is ""."""
    return "" if proto.domain == "ai.onnx" else proto.domain


def open_model(source: Source) -> ModelFile:
    """A model from a file or in memory. CheckpointError for what is none; reads no weights."""
    if isinstance(source, ModelProto):
        return ModelFile(source)
    if not isinstance(source, str | os.PathLike):
        raise OptionError(
            f"what is to be imported is a {type(source).__name__}",
            facts="it is the path of an ONNX file, or an onnx.ModelProto",
        )
    path = Path(source)
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist" if not path.exists() else f"{path} is no file"
        )
    data = _mapped(path)
    try:
        proto, places = split(data)
        model = ModelProto.FromString(proto)
    except DecodeError as error:
        raise _at(path, damaged(str(error) or "protobuf cannot read it")) from None
    except CheckpointError as error:
        raise _at(path, error) from None
    if not model.HasField("graph"):
        raise _at(path, damaged("it has no graph"))
    return ModelFile(model, path, places, {path: data})


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read", facts=str(error)) from None


def _at(path: Path, error: CheckpointError) -> CheckpointError:
    return CheckpointError(error.what, where=str(path), facts=error.facts, fix=error.fix)
