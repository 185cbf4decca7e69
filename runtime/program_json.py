"""Program to plain data and back. Dims are text that only the dim parser reads."""

import keyword
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial, reduce
from operator import or_
from typing import Any

from ..ir.dim import Dim, Symbol, symbols_of
from ..ir.dim_text import parse_dim
from ..ir.errors import ArtifactError, TilewrightError
from ..ir.program import Buffer, Kernel, Program
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
from .check_program import check_program
from .storage import PROGRAM, damaged

# what reading data of a wrong form ends in; the last two: nested or large beyond all bounds
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, TilewrightError)
_DAMAGE = (*_DAMAGE, ArithmeticError, RecursionError)

_BY_NAME = ("symbols", "buffers", "kernels")  # fields that are mappings from names


def program_to_json(program: Program) -> dict[str, Any]:
    """Everything but binaries and sources, which are files of their own."""
    return {
        **fields_to_plain(program, without=("blobs", *_BY_NAME)),
        "symbols": to_plain(program.symbols.values(), tuple[Symbol, ...]),
        "buffers": to_plain(program.buffers.values(), tuple[Buffer, ...]),
        "kernels": [fields_to_plain(k, without=("source",)) for k in program.kernels.values()],
    }


def program_from_json(
    data: Any, blobs: Mapping[str, bytes], source_of: Callable[[str], str]
) -> Program:
    """The inverse. `source_of` gives a kernel's source by its name.

    ArtifactError when anything is missing, of a wrong type, or does not fit the rest.
    """
    try:
        program = _program(data, blobs, source_of)
    except ArtifactError:
        raise
    except _DAMAGE as error:
        facts = f"{type(error).__name__}: {str(error)[:300]}"
        raise damaged("the stored program is", PROGRAM, facts) from error
    check_program(program)
    return program


def _program(data: Any, blobs: Mapping[str, bytes], source_of: Callable[[str], str]) -> Program:
    dims = _Dims()
    symbols = read_plain(data["symbols"], tuple[Symbol, ...], dims)
    for symbol in symbols:
        _check_name(symbol.name)
        dims.symbols[symbol.name] = symbol
    buffers = read_plain(data["buffers"], tuple[Buffer, ...], dims)
    for buffer in buffers:
        buffer.encoding.stored(buffer.type)  # ValueError where they do not fit
    kernels = [read_fields(k, Kernel, dims, without=("source",)) for k in data["kernels"]]
    return Program(
        **read_fields(data, Program, dims, without=("blobs", *_BY_NAME)),
        symbols=dims.symbols,
        buffers={b.name: b for b in buffers},
        kernels={k["name"]: Kernel(**k, source=source_of(k["name"])) for k in kernels},
        blobs=blobs,
    )


class _Dims:
    """Reads dims, allowing only declared symbols."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}
        self._read: dict[str, Dim] = {}

    def __call__(self, value: Any) -> Dim:
        if type(value) is int:
            return value
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no dim")
        if value not in self._read:
            dim = parse_dim(value)
            unknown = symbols_of(dim) - self.symbols.keys()
            if unknown:
                raise ValueError(f"dim {value!r} has undeclared symbols {sorted(unknown)}")
            self._read[value] = dim
        return self._read[value]


def _check_name(name: str) -> None:
    # names become parameters of a compiled function: nothing but a plain name may pass
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("min", "max"):
        raise ValueError(f"{name!r} is not a name for a symbol")


# ---- dataclasses: a field is read by what its annotation says it is ---------------------------

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
Read = Callable[[Any, ReadDim], Any]


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
        name: read(data[name], dims) for name, read in _readers(kind).items() if name not in without
    }


@lru_cache(maxsize=32)
def _annotations(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@lru_cache(maxsize=32)
def _readers(kind: type) -> dict[str, Read]:
    return {name: _reader(annotation) for name, annotation in _annotations(kind).items()}


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
    return _reader(annotation)(data, dims)


@lru_cache(maxsize=256)
def _reader(annotation: Any) -> Read:
    """How a value of the annotated type is read: a program has tens of thousands of few types."""
    if annotation == Dim:
        return lambda data, dims: dims(data)
    if annotation is Step:
        return lambda data, dims: _reader(STEPS[data["kind"]])(data, dims)
    if annotation is DType:
        return lambda data, dims: DTYPES[data]
    if is_dataclass(annotation):
        return lambda data, dims: annotation(**read_fields(data, annotation, dims))
    if annotation == str | Dim:
        name = _reader(str)
        return lambda data, dims: (
            name(data["buffer"], dims) if "buffer" in data else dims(data["dim"])
        )
    if (other := _or_none(annotation)) is not None:
        some = _reader(other)
        return lambda data, dims: None if data is None else some(data, dims)
    if typing.get_origin(annotation) is tuple:
        return partial(_read_tuple, _reader(typing.get_args(annotation)[0]))
    return partial(_read_value, dict if typing.get_origin(annotation) is Mapping else annotation)


def _read_tuple(item: Read, data: Any, dims: ReadDim) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise TypeError(f"{data!r} is not a list")
    return tuple([item(each, dims) for each in data])


def _read_value(kind: type, data: Any, dims: ReadDim) -> Any:
    if type(data) is not kind:
        raise TypeError(f"{data!r} is not of type {kind}")
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
