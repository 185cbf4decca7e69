"""Steps to plain data and back: a field is read by what its annotation says it is."""

import typing
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from ..ir.dim import Dim
from ..ir.steps import (
    BindSize,
    Choice,
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

# the names are part of the artifact's format
KINDS: dict[str, type[Step]] = {
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
_NAMES = {kind: name for name, kind in KINDS.items()}

ReadDim = Callable[[Any], Dim]


def step_to_json(step: Step) -> dict[str, Any]:
    """A step as JSON has it, with those inside."""
    return {"kind": _NAMES[type(step)], **_fields_to_json(step)}


def read_step(data: Any, dims: ReadDim) -> Step:
    """The inverse. KeyError, TypeError or ValueError when it is not a step's form."""
    return _read_fields(KINDS[data["kind"]], data, dims)


def _fields_to_json(item: Any) -> dict[str, Any]:
    return {
        name: _to_json(getattr(item, name), annotation)
        for name, annotation in _annotations(type(item)).items()
    }


def _read_fields(kind: type, data: Any, dims: ReadDim) -> Any:
    annotations = _annotations(kind)
    return kind(**{name: _read(data[name], a, dims) for name, a in annotations.items()})


@lru_cache(maxsize=16)
def _annotations(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _to_json(value: Any, annotation: Any) -> Any:
    if annotation == Dim:
        return value if isinstance(value, int) else str(value)
    if annotation is Step:
        return step_to_json(value)
    if annotation is Choice:
        return _fields_to_json(value)
    if annotation == str | Dim:  # a buffer's name and a dim are told apart by the key
        return {"buffer": value} if isinstance(value, str) else {"dim": _to_json(value, Dim)}
    if typing.get_origin(annotation) is tuple:
        (item, _) = typing.get_args(annotation)
        return [_to_json(each, item) for each in value]
    return value


def _read(data: Any, annotation: Any, dims: ReadDim) -> Any:
    if annotation == Dim:
        return dims(data)
    if annotation is Step:
        return read_step(data, dims)
    if annotation is Choice:
        return _read_fields(Choice, data, dims)
    if annotation == str | Dim:
        return _read(data["buffer"], str, dims) if "buffer" in data else dims(data["dim"])
    if typing.get_origin(annotation) is tuple:
        (item, _) = typing.get_args(annotation)
        if not isinstance(data, list):
            raise TypeError(f"{data!r} is not a list")
        return tuple(_read(each, item, dims) for each in data)
    allowed = typing.get_args(annotation) or (annotation,)
    if type(data) not in allowed:
        raise TypeError(f"{data!r} is not of type {annotation}")
    return data
