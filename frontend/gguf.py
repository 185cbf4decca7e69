"""Reading of GGUF files: metadata at once, tensors one at a time from a memory map.

Invariant: nothing is read or allocated before it is known to lie inside the file, so a truncated or
hostile file costs no more than its own size and ends in a `CheckpointError`.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 counted in 32 bits; no tool writes it any more
MAX_TENSOR_DIMS = 4  # GGML_MAX_DIMS
MAX_ARRAY_DEPTH = 4  # arrays of arrays are legal; deeper nesting only occurs in crafted files
DEFAULT_ALIGNMENT = 32
UNPACK_ELEMENTS = 1 << 20  # unpacked at a time

# metadata value types by their number in the file; 8 is a string, 9 an array
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of a file: `shape` outermost dim first, `kind` the block format (Q4_1, F32...)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int  # from the start of the file
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A parsed header and the mapped file behind it."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    _bytes: np.ndarray

    @property
    def architecture(self) -> str:
        """The `general.architecture` entry, such as `llama`."""
        return self.metadata["general.architecture"]

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor as the file packs them: uint8, mapped, not copied."""
        tensor = self.tensors[name]
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]

    def load(self, name: str) -> np.ndarray:
        """A tensor unpacked to float32 (integer tensors keep their type); owns its memory."""
        tensor = self.tensors[name]
        raw = self.raw(name)
        if tensor.kind in _PLAIN:
            values = raw.view(_PLAIN[tensor.kind])
            dtype = np.float32 if values.dtype.kind == "f" else values.dtype
            return values.astype(dtype).reshape(tensor.shape)
        if tensor.kind == "BF16":
            bits = raw.view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(tensor.shape)
        return _unpack_blocks(tensor, raw, self.path)


_PLAIN: dict[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


def is_gguf(path: str | Path) -> bool:
    """Whether the path is a file that begins with the GGUF magic, or is named `*.gguf`."""
    path = Path(path)
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_gguf(path: str | Path) -> GGUFFile:
    """Parse the header of a GGUF file and map the rest.

    Raises `CheckpointError` for a missing, truncated or malformed file, naming the byte offset.
    """
    path = Path(path)
    cursor = _Cursor(path, _map(path))
    cursor.doing = "reading the header"
    magic = cursor.take(4)
    if magic != MAGIC:
        raise CheckpointError(
            "not a GGUF file",
            where=str(path),
            facts=f"the first bytes are {bytes(magic)!r}, a GGUF file begins with {MAGIC!r}",
            fix="give a .gguf file, or a folder with config.json and *.safetensors",
        )
    version = cursor.scalar(_U32)
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        fix = (
            "the file is big-endian: convert it with gguf-convert-endian"
            if swapped in VERSIONS
            else "convert the model again with a current llama.cpp"
        )
        raise CheckpointError(
            f"GGUF version {version} is not supported",
            where=f"{path}, byte 4",
            facts=f"this reader handles versions {' and '.join(map(str, VERSIONS))}",
            fix=fix,
        )
    tensor_count, entry_count = cursor.scalar(_U64), cursor.scalar(_U64)
    cursor.check_count(entry_count, 13, "metadata entries")
    cursor.check_count(tensor_count, 24, "tensors")
    metadata = _read_metadata(cursor, entry_count)
    infos = _read_tensor_table(cursor, tensor_count)
    tensors = _place_tensors(cursor, infos, metadata)
    return GGUFFile(path, version, metadata, tensors, np.frombuffer(cursor.data, dtype=np.uint8))


def _map(path: Path) -> mmap.mmap:
    if not path.exists():
        raise CheckpointError(
            "no such file", where=str(path), fix="check the path; nothing is downloaded"
        )
    if path.is_dir():
        raise CheckpointError(
            "a folder where a GGUF file was expected",
            where=str(path),
            fix="name the .gguf file inside it",
        )
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(
            "truncated GGUF file",
            where=str(path),
            facts=f"it has {size} bytes, the fixed header alone takes 24",
            fix="copy or download the file again",
        )
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class _Cursor:
    """A position in the mapped file; every read is checked against the end."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data = path, data
        self.size = len(data)
        self.pos = 0
        self.doing = ""

    def take(self, count: int) -> bytes:
        end = self.pos + count
        if end > self.size:
            raise self.truncated(count)
        chunk = self.data[self.pos : end]
        self.pos = end
        return chunk

    def scalar(self, form: struct.Struct) -> Any:
        end = self.pos + form.size
        if end > self.size:
            raise self.truncated(form.size)
        (value,) = form.unpack_from(self.data, self.pos)
        self.pos = end
        return value

    def string(self) -> str:
        length = self.scalar(_U64)
        if length > self.size - self.pos:
            raise self.truncated(length)
        start = self.pos
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(
                f"text at byte {start} is not UTF-8 ({error.reason} at +{error.start})"
            ) from None

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count whose items cannot fit in what is left of the file."""
        left = self.size - self.pos
        if count * least_bytes > left:
            raise self.malformed(
                f"{count} {what} are announced, each takes at least {least_bytes} bytes, "
                f"and {left} bytes are left"
            )

    def truncated(self, count: int) -> CheckpointError:
        return CheckpointError(
            "truncated GGUF file",
            where=f"{self.path}, byte {self.pos}, {self.doing}",
            facts=f"{count} bytes are needed there, {self.size - self.pos} are left "
            f"of a file of {self.size}",
            fix="copy or download the file again and compare its size with the source",
        )

    def malformed(self, facts: str) -> CheckpointError:
        return CheckpointError(
            "malformed GGUF file",
            where=f"{self.path}, byte {self.pos}, {self.doing}",
            facts=facts,
            fix="copy or download the file again; if it stays so, the writer is at fault",
        )


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        cursor.doing = f"reading the key of metadata entry {index}"
        key = cursor.string()
        cursor.doing = f"reading metadata {key!r}"
        if key in metadata:
            raise cursor.malformed(f"the key {key!r} occurs twice")
        metadata[key] = _read_value(cursor, cursor.scalar(_U32), depth=0)
    if not isinstance(metadata.get("general.architecture"), str):
        raise CheckpointError(
            "a GGUF file that names no model architecture",
            where=str(cursor.path),
            facts=f"its metadata has {', '.join(sorted(metadata)[:8]) or 'no entries'}, "
            "but no 'general.architecture'",
            fix="give a language model's file; this may hold an adapter or a vocabulary only",
        )
    return metadata


def _read_value(cursor: _Cursor, kind: int, depth: int) -> Any:
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        raise cursor.malformed(f"value type {kind} is unknown; types 0 to 12 are defined")
    if depth == MAX_ARRAY_DEPTH:
        raise cursor.malformed(f"arrays are nested more than {MAX_ARRAY_DEPTH} deep")
    element, count = cursor.scalar(_U32), cursor.scalar(_U64)
    if element in _SCALARS:
        form = _SCALARS[element]
        cursor.check_count(count, form.size, "array elements")
        return np.frombuffer(cursor.take(count * form.size), dtype=form.format).tolist()
    cursor.check_count(count, 8, "array elements")
    if element == _STRING:
        return _read_strings(cursor, count)
    return [_read_value(cursor, element, depth + 1) for _ in range(count)]


def _read_strings(cursor: _Cursor, count: int) -> list[str]:
    # The vocabulary and the merges: about 10^5 strings, so the loop is written flat.
    data, size, unpack, pos = cursor.data, cursor.size, _U64.unpack_from, cursor.pos
    strings = []
    for _ in range(count):
        if pos + 8 > size:
            cursor.pos = pos
            raise cursor.truncated(8)
        end = pos + 8 + unpack(data, pos)[0]
        if end > size:
            cursor.pos = pos + 8
            raise cursor.truncated(end - pos - 8)
        strings.append(data[pos + 8 : end])
        pos = end
    cursor.pos = pos
    try:
        return [text.decode("utf-8") for text in strings]
    except UnicodeDecodeError as error:
        raise cursor.malformed(f"a text of the array is not UTF-8: {error.object[:32]!r}") from None


def _read_tensor_table(cursor: _Cursor, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
    table = []
    for index in range(count):
        cursor.doing = f"reading the table entry of tensor {index}"
        name = cursor.string()
        cursor.doing = f"reading the table entry of tensor {name!r}"
        rank = cursor.scalar(_U32)
        if rank > MAX_TENSOR_DIMS:
            raise cursor.malformed(f"it has {rank} dims; at most {MAX_TENSOR_DIMS} are possible")
        # the file lists the fastest-moving dim first
        shape = tuple(reversed([cursor.scalar(_U64) for _ in range(rank)]))
        table.append((name, shape, cursor.scalar(_U32), cursor.scalar(_U64)))
    return table


def _place_tensors(
    cursor: _Cursor,
    table: list[tuple[str, tuple[int, ...], int, int]],
    metadata: dict[str, Any],
) -> dict[str, GGUFTensor]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.malformed(f"general.alignment is {alignment!r}, not a power of two")
    start = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, number, offset in table:
        cursor.doing = f"placing tensor {name!r}"
        if name in tensors:
            raise cursor.malformed("the name occurs twice in the table")
        kind, block, block_bytes = _block_format(cursor, number, name)
        elements = 1
        for extent in shape:
            elements *= extent
        row = shape[-1] if shape else 1
        if row % block:
            raise cursor.malformed(f"rows of {row} are no multiple of a {kind} block of {block}")
        nbytes = elements // block * block_bytes
        if start + offset + nbytes > cursor.size:
            raise CheckpointError(
                "truncated GGUF file",
                where=f"{cursor.path}, tensor {name!r}: {kind}{list(shape)}",
                facts=f"its bytes are {start + offset} to {start + offset + nbytes}, "
                f"the file ends at {cursor.size}",
                fix="copy or download the file again and compare its size with the source",
            )
        tensors[name] = GGUFTensor(name, shape, kind, start + offset, nbytes)
    return tensors


def _block_format(cursor: _Cursor, number: int, name: str) -> tuple[str, int, int]:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise CheckpointError(
            f"tensor type {number} is unknown",
            where=f"{cursor.path}, tensor {name!r}",
            facts=f"known types are 0 to {max(GGMLQuantizationType)}, with gaps",
            fix="update the gguf package, or quantize the model to a common type such as Q8_0",
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return kind.name, block, block_bytes


def _unpack_blocks(tensor: GGUFTensor, raw: np.ndarray, path: Path) -> np.ndarray:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    unpack: Callable[..., np.ndarray] = dequantize
    kind = GGMLQuantizationType[tensor.kind]
    rows = raw.reshape(prod(tensor.shape[:-1]), -1)
    result = np.empty((len(rows), tensor.shape[-1]), np.float32)
    # in steps: unpacking takes several times the memory of what it gives
    step = max(1, UNPACK_ELEMENTS // max(1, tensor.shape[-1]))
    try:
        for at in range(0, len(rows), step):
            result[at : at + step] = unpack(rows[at : at + step], kind)
        return result.reshape(tensor.shape)
    except NotImplementedError:
        raise CheckpointError(
            f"blocks of type {tensor.kind} cannot be unpacked",
            where=f"{path}, tensor {tensor.name!r}",
            fix="quantize the model to a common type such as Q4_K, Q8_0 or F16",
        ) from None
