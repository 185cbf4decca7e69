"""Program to plain data and back. Dims are text that only the dim parser reads."""

import keyword
from collections.abc import Callable, Mapping
from typing import Any

from ..ir.dim import Dim, Symbol, symbols_of
from ..ir.dim_text import parse_dim
from ..ir.errors import ArtifactError, TilewrightError
from ..ir.program import Buffer, Kernel, Program
from .check_program import check_program
from .plain_data import fields_to_plain, read_fields, read_plain, to_plain
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
