"""Program to plain data and back. Dims are text that only the dim parser reads."""

import keyword
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..ir.dim import Dim, Symbol, symbols_of
from ..ir.dim_text import parse_dim
from ..ir.encoding import Encoding
from ..ir.errors import ArtifactError, TilewrightError
from ..ir.layout import KVLayout
from ..ir.program import Buffer, DataCheck, Kernel, Program
from ..ir.types import DTYPES, TensorType
from .check_program import check_program
from .step_json import read_step, step_to_json

# what reading data of a wrong form ends in; the last two: nested or large beyond all bounds
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, TilewrightError)
_DAMAGE = (*_DAMAGE, ArithmeticError, RecursionError)


def program_to_json(program: Program) -> dict[str, Any]:
    """Everything but binaries and sources, which are files of their own."""
    return {
        "name": program.name,
        "target": program.target,
        "symbols": [asdict(s) for s in program.symbols.values()],
        "buffers": [_buffer(b) for b in program.buffers.values()],
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "kernels": [_kernel(k) for k in program.kernels.values()],
        "steps": [step_to_json(s) for s in program.steps],
        "arena_bytes": _dim(program.arena_bytes),
        "checks": [asdict(c) for c in program.checks],
        "kv": program.kv.to_json() if program.kv else None,
        "meta": plain(program.meta),
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
        raise ArtifactError(
            "the stored program is damaged",
            where="program.json",
            facts=f"{type(error).__name__}: {str(error)[:300]}",
            fix="copy the artifact again, or build it again",
        ) from error
    check_program(program)
    return program


# ---- writing -------------------------------------------------------------------------------


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "dtype": buffer.type.dtype.name,
        "shape": [_dim(d) for d in buffer.type.shape],
        "role": buffer.role,
        "offset": None if buffer.offset is None else _dim(buffer.offset),
        "encoding": buffer.encoding.to_json(),
    }


def _kernel(kernel: Kernel) -> dict[str, Any]:
    data = {name: value for name, value in vars(kernel).items() if name != "source"}
    return data | {"options": plain(kernel.options)}


def plain(value: Any) -> Any:
    """`value` as JSON has it. TypeError for what JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be stored: {value!r}")


# ---- reading -------------------------------------------------------------------------------


def _program(data: Any, blobs: Mapping[str, bytes], source_of: Callable[[str], str]) -> Program:
    symbols = {s["name"]: _read_symbol(s) for s in data["symbols"]}
    dims = _Dims(symbols)
    buffers = [_read_buffer(b, dims) for b in data["buffers"]]
    kernels = [_read_kernel(k, source_of) for k in data["kernels"]]
    return Program(
        name=_text(data["name"]),
        target=_text(data["target"]),
        symbols=symbols,
        buffers={b.name: b for b in buffers},
        inputs=tuple(map(_text, data["inputs"])),
        outputs=tuple(map(_text, data["outputs"])),
        kernels={k.name: k for k in kernels},
        steps=tuple(read_step(s, dims) for s in data["steps"]),
        arena_bytes=dims(data["arena_bytes"]),
        blobs=blobs,
        checks=tuple(map(_read_check, data["checks"])),
        kv=_read_kv(data["kv"]),
        meta=frozen(data["meta"]),
    )


def _read_check(data: Any) -> DataCheck:
    flags = {name: data[name] for name in ("wraps", "is_divisor")}
    if any(type(flag) is not bool for flag in flags.values()):
        raise TypeError(f"a check has {flags}")
    loc = None if data["loc"] is None else _text(data["loc"])
    return DataCheck(_text(data["op"]), loc, **flags)


class _Dims:
    """Reads dims, allowing only declared symbols."""

    def __init__(self, symbols: Mapping[str, Symbol]):
        self._symbols = symbols
        self._read: dict[str, Dim] = {}

    def __call__(self, value: Any) -> Dim:
        if type(value) is int:
            return value
        text = _text(value)
        if text not in self._read:
            dim = parse_dim(text)
            unknown = symbols_of(dim) - self._symbols.keys()
            if unknown:
                raise ValueError(f"dim {text!r} has undeclared symbols {sorted(unknown)}")
            self._read[text] = dim
        return self._read[text]


def _read_symbol(data: Any) -> Symbol:
    # names become parameters of a compiled function: nothing but a plain name may pass
    name = _text(data["name"])
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("min", "max"):
        raise ValueError(f"{name!r} is not a name for a symbol")
    numbers = {key: data[key] for key in ("lo", "hi", "multiple", "hint")}
    if any(
        type(v) is not int and not (v is None and k in ("hi", "hint")) for k, v in numbers.items()
    ):
        raise ValueError(f"symbol {name} has {numbers}")
    return Symbol(name, **numbers)


def _read_buffer(data: Any, dims: _Dims) -> Buffer:
    type = TensorType(tuple(map(dims, data["shape"])), DTYPES[data["dtype"]])
    encoding = Encoding.from_json(data["encoding"])
    encoding.stored(type)  # ValueError where they do not fit
    offset = None if data["offset"] is None else dims(data["offset"])
    return Buffer(_text(data["name"]), type, _text(data["role"]), offset, encoding)


def _read_kernel(data: Any, source_of: Callable[[str], str]) -> Kernel:
    texts: dict[str, Any] = {
        k: _text(data[k]) for k in ("name", "language", "key", "binary", "template")
    }
    numbers: dict[str, Any] = {
        k: int(data[k]) for k in ("num_warps", "shared_bytes", "scratch_bytes")
    }
    args = data["args"]
    return Kernel(
        **texts,
        **numbers,
        source=source_of(texts["name"]),
        options=frozen(data["options"]),
        args=None if args is None else tuple(map(_text, args)),
    )


def _read_kv(data: Any) -> KVLayout | None:
    if data is None:
        return None
    for layer in data["layers"]:
        numbers = [] if layer["window"] is None else [layer["window"]]
        for pool in (layer["k"], layer["v"]):
            _text(pool["state"])
            numbers += [pool["num_heads"], pool["head_dim"]]
        if any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError(f"a layer's keys and values are {layer}")
    return KVLayout.from_json(data)


def frozen(value: Any) -> Any:
    """JSON data with lists as tuples, as programs have them."""
    if isinstance(value, dict):
        return {k: frozen(v) for k, v in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
