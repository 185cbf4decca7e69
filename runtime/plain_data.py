"""Dataclasses to plain data and back: a field is read by what its annotation says it is."""

import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import Any

from ..ir.dim import Dim
from ..ir.steps import (
    BindSize,
    Collective,
    Cond,
    Copy,
    HostCall,
    LaunchStep,
    LibraryCall,
    ScanLoop,
    Step,
    While,
)
from ..ir.types import DTYPES, DType

# the names are part of the artifact's format
STEPS: dict[str, type[Step]] = {
    "launch": LaunchStep,
    "copy": Copy,
    "host call": HostCall,
    "library call": LibraryCall,
    "bind": BindSize,
    "collective": Collective,
    "cond": Cond,
    "while": While,
    "scan": ScanLoop,
}
_NAMES = {kind: name for name, kind in STEPS.items()}

ReadDim = Callable[[Any], Dim]


def fields_to_plain(item: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them."""
    return {
        name: to_plain(getattr(item, name), annotation)
        for name, annotation in _annotations(type(item)).items()
        if name not in without
    }


def read_fields(
    data: Any, kind: type, dims: ReadDim, without: Collection[str] = ()
) -> dict[str, Any]:
    """The inverse. KeyError, TypeError or ValueError when it is not the form of a `kind`."""
    return {
        name: read_plain(data[name], annotation, dims)
        for name, annotation in _annotations(kind).items()
        if name not in without
    }


@lru_cache(maxsize=32)
def _annotations(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def to_plain(value: Any, annotation: Any) -> Any:
    """`value`, which is of the annotated type, as JSON has it. TypeError for what JSON lacks."""
    if annotation == Dim:
        return value if isinstance(value, int) else str(value)
    if annotation is Step:
        return {"kind": _NAMES[type(value)], **fields_to_plain(value)}
    if annotation is DType:
        return value.name
    if is_dataclass(annotation):
        return fields_to_plain(value)
    if annotation == str | Dim:  # a buffer's name and a dim are told apart by the key
        return {"buffer": value} if isinstance(value, str) else {"dim": to_plain(value, Dim)}
    if (other := _or_none(annotation)) is not None:
        return None if value is None else to_plain(value, other)
    if typing.get_origin(annotation) is tuple:
        (item, _) = typing.get_args(annotation)
        return [to_plain(each, item) for each in value]
    return plain(value)


def read_plain(data: Any, annotation: Any, dims: ReadDim) -> Any:
    """The inverse. KeyError, TypeError or ValueError when it is not the annotation's form."""
    if annotation == Dim:
        return dims(data)
    if annotation is Step:
        annotation = STEPS[data["kind"]]
    if annotation is DType:
        return DTYPES[data]
    if is_dataclass(annotation):
        return annotation(**read_fields(data, annotation, dims))
    if annotation == str | Dim:
        return read_plain(data["buffer"], str, dims) if "buffer" in data else dims(data["dim"])
    if (other := _or_none(annotation)) is not None:
        return None if data is None else read_plain(data, other, dims)
    if typing.get_origin(annotation) is tuple:
        (item, _) = typing.get_args(annotation)
        if not isinstance(data, list):
            raise TypeError(f"{data!r} is not a list")
        return tuple(read_plain(each, item, dims) for each in data)
    annotation = dict if typing.get_origin(annotation) is Mapping else annotation
    if type(data) is not annotation:
        raise TypeError(f"{data!r} is not of type {annotation}")
    return frozen(data)


def _or_none(annotation: Any) -> Any:
    """T where the annotation is `T | None`."""
    parts = typing.get_args(annotation)
    return reduce(or_, [p for p in parts if p is not type(None)]) if type(None) in parts else None


def plain(value: Any) -> Any:
    """`value` as JSON has it. TypeError for what JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be stored: {value!r}")


def frozen(value: Any) -> Any:
    """JSON data with lists as tuples, as programs have them."""
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value
