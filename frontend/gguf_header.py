"""The header of one GGUF file: metadata and the table of tensors, read from a memory map.

Invariant: nothing is read or allocated before it is known to lie inside the file and inside the
limits below, so a truncated or hostile file costs no more than its own size plus a bounded amount,
and ends in a `CheckpointError`.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..ir.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 counted in 32 bits; no tool writes it any more
MAX_TENSOR_DIMS = 4  # GGML_MAX_DIMS
MAX_ARRAY_DEPTH = 4  # arrays of arrays are legal; deeper nesting only occurs in crafted files
# Python's objects take up to twenty times what they take in the file. These bound them to some
# 500 MB; the largest vocabularies have 262,144 tokens with a type and a score each, or 440,000
# merges, and headers of 40 MB.
MAX_ELEMENTS = 1 << 21
MAX_METADATA = 1 << 26
MAX_STRING = 1 << 25
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17

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


class TableEntry(NamedTuple):
    """A tensor as the file lists it: shape outermost dim first, type number, offset in the data."""

    name: str
    shape: tuple[int, ...]
    number: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the data of a file; `cursor` stands at its end."""

    version: int
    metadata: dict[str, Any]
    table: list[TableEntry]
    cursor: "Cursor"


def read_header(path: Path) -> Header:
    """Parse the header of one file and map the rest.

    Raises `CheckpointError` for a missing, truncated or malformed file, naming the byte offset.
    """
    cursor = Cursor(path, _map(path))
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
    if entry_count > MAX_ENTRIES or tensor_count > MAX_TENSORS:
        raise cursor.malformed(
            f"{entry_count} metadata entries and {tensor_count} tensors; at most {MAX_ENTRIES} "
            f"and {MAX_TENSORS} are read"
        )
    metadata = _read_metadata(cursor, entry_count)
    return Header(version, metadata, _read_tensor_table(cursor, tensor_count), cursor)


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


class Cursor:
    """A position in the mapped file; every read is checked against the end."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data = path, data
        self.size = len(data)
        self.elements = 0  # of all arrays so far
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
        if length > MAX_STRING:
            raise self.malformed(f"a text of {length} bytes; at most {MAX_STRING} are read")
        start = self.pos
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.malformed(
                f"text at byte {start} is not UTF-8 ({error.reason} at +{error.start})"
            ) from None

    def count_elements(self, count: int) -> None:
        """Refuse more elements of arrays than a header may have."""
        self.elements += count
        if self.elements > MAX_ELEMENTS:
            raise self.malformed(
                f"{self.elements} elements of arrays; at most {MAX_ELEMENTS} "
                "are read, twice what the largest vocabularies need"
            )

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


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        cursor.doing = f"reading the key of metadata entry {index}"
        key = cursor.string()
        cursor.doing = f"reading metadata {key!r}"
        if key in metadata:
            raise cursor.malformed(f"the key {key!r} occurs twice")
        metadata[key] = _read_value(cursor, cursor.scalar(_U32), depth=0)
        if cursor.pos > MAX_METADATA:
            raise cursor.malformed(f"the metadata is longer than {MAX_METADATA} bytes")
    return metadata


def _read_value(cursor: Cursor, kind: int, depth: int) -> Any:
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
        cursor.count_elements(count)
        return np.frombuffer(cursor.take(count * form.size), dtype=form.format).tolist()
    cursor.check_count(count, 8, "array elements")
    cursor.count_elements(count)
    if element == _STRING:
        return _read_strings(cursor, count)
    return [_read_value(cursor, element, depth + 1) for _ in range(count)]


def _read_strings(cursor: Cursor, count: int) -> list[str]:
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
        if end > MAX_METADATA:
            raise cursor.malformed(f"the metadata is longer than {MAX_METADATA} bytes")
        strings.append(data[pos + 8 : end])
        pos = end
    cursor.pos = pos
    try:
        return [text.decode("utf-8") for text in strings]
    except UnicodeDecodeError as error:
        raise cursor.malformed(f"a text of the array is not UTF-8: {error.object[:32]!r}") from None


def _read_tensor_table(cursor: Cursor, count: int) -> list[TableEntry]:
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
        table.append(TableEntry(name, shape, cursor.scalar(_U32), cursor.scalar(_U64)))
    return table
