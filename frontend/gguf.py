"""Reading of GGUF files: metadata at once, tensors one at a time from a memory map.

A model may be split into parts (`name-00001-of-00003.gguf`): any of them stands for the whole.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError, listed
from .gguf_header import MAGIC, Cursor, Header, TableEntry, read_header

DEFAULT_ALIGNMENT = 32
MAX_PARTS = 99999  # the names of parts have five digits
MAX_EXTENT = 1 << 48
UNPACK_ELEMENTS = 1 << 20  # unpacked at a time
_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of a file: `shape` outermost dim first, `kind` the block format (Q4_1, F32...)."""

    name: str
    shape: tuple[int, ...]
    kind: str
    part: int  # of the files that hold the model
    offset: int  # from the start of that file
    nbytes: int


@dataclass(frozen=True)
class GGUFFile:
    """A parsed header and the mapped file behind it, or several that make one model.

    `path` is the file that was asked for, `metadata` that of the first part.
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    _bytes: tuple[np.ndarray, ...]

    @property
    def architecture(self) -> str:
        """The `general.architecture` entry, such as `llama`."""
        return self.metadata["general.architecture"]

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor as the file packs them: uint8, mapped, not copied."""
        tensor = self.tensors[name]
        return self._bytes[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]

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
    """Parse the header of a GGUF file, or of all the parts it belongs to, and map the rest.

    Raises `CheckpointError` for a missing, truncated or malformed file, naming the byte offset,
    for tensors that share bytes, and for parts that are missing or of different models.
    """
    path = Path(path)
    header = read_header(path)
    paths = _part_paths(path, header)
    headers = [header if part == path else read_header(part) for part in paths]
    _check_parts(paths, headers)
    metadata = headers[0].metadata
    if not isinstance(metadata.get("general.architecture"), str):
        raise CheckpointError(
            "a GGUF file that names no model architecture",
            where=str(paths[0]),
            facts=f"its metadata has {listed(sorted(metadata), ', ') or 'no entries'}, "
            "but no 'general.architecture'",
            fix="give a language model's file; this may hold an adapter or a vocabulary only",
        )
    tensors: dict[str, GGUFTensor] = {}
    for part, one in enumerate(headers):
        for tensor in _place_tensors(one, part):
            if tensor.name in tensors:
                raise one.cursor.malformed(f"the name occurs twice in the table: {tensor.name!r}")
            tensors[tensor.name] = tensor
    data = tuple(np.frombuffer(one.cursor.data, dtype=np.uint8) for one in headers)
    return GGUFFile(path, header.version, metadata, tensors, data)


# ---- parts ---------------------------------------------------------------------------------


def _part_paths(path: Path, header: Header) -> list[Path]:
    # llama.cpp: split.count parts, named by llama_split_path as "%s-%05d-of-%05d.gguf"
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise header.cursor.malformed(f"split.count is {count!r}, not a number of parts")
    if count <= 1:
        return [path]
    named = _PART_NAME.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise CheckpointError(
            "one part of several, under a name that does not say which",
            where=str(path),
            facts=f"split.count is {count}; parts are named name-00001-of-{count:05}.gguf",
            fix="give the parts the names that they had where they are from",
        )
    paths = [path.with_name(f"{named[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(
            "parts of the model are missing",
            where=str(path.parent),
            facts=f"{len(missing)} of {count}: {listed(missing, ', ')}",
            fix="copy or download them into the same folder",
        )
    return paths


def _check_parts(paths: list[Path], headers: list[Header]) -> None:
    count = len(headers)
    if count == 1:
        return
    problems = []
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        for key, expected in {"split.no": index, "split.count": count}.items():
            value = header.metadata.get(key)
            if value != expected:
                problems.append(f"{path.name}: {key} is {value!r}, not {expected}")
    found = sum(len(header.table) for header in headers)
    stated = headers[0].metadata.get("split.tensors.count", found)
    if stated != found:
        problems.append(f"split.tensors.count is {stated!r}, the parts have {found} tensors")
    if problems:
        raise CheckpointError(
            "the parts are not of one model",
            where=str(paths[0]),
            facts=listed(problems),
            fix="copy or download all parts again from one place",
        )


# ---- tensors -------------------------------------------------------------------------------


def _place_tensors(header: Header, part: int) -> list[GGUFTensor]:
    cursor = header.cursor
    alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.malformed(f"general.alignment is {alignment!r}, not a power of two")
    start = -(-cursor.pos // alignment) * alignment
    tensors = [_place(cursor, entry, part, start, alignment) for entry in header.table]
    cursor.doing = "placing the tensors"
    ordered = sorted((t for t in tensors if t.nbytes), key=lambda t: t.offset)
    shared = [
        f"{before.name!r} ends at byte {before.offset + before.nbytes}, "
        f"{after.name!r} begins at {after.offset}"
        for before, after in pairwise(ordered)
        if after.offset < before.offset + before.nbytes
    ]
    if shared:
        raise cursor.malformed("tensors share bytes: " + listed(shared, "; "))
    return tensors


def _place(cursor: Cursor, entry: TableEntry, part: int, start: int, alignment: int) -> GGUFTensor:
    name, shape = entry.name, entry.shape
    cursor.doing = f"placing tensor {name!r}"
    kind, block, block_bytes = _block_format(cursor, entry.number, name)
    if max(shape, default=0) > MAX_EXTENT:  # an empty tensor may still have one
        raise cursor.malformed(f"its shape is {list(shape)}")
    row = shape[-1] if shape else 1
    if row % block:
        raise cursor.malformed(f"rows of {row} are no multiple of a {kind} block of {block}")
    nbytes = prod(shape) // block * block_bytes
    begin = start + entry.offset
    if begin + nbytes > cursor.size:
        raise CheckpointError(
            "truncated GGUF file",
            where=f"{cursor.path}, tensor {name!r}: {kind}{list(shape)}",
            facts=f"its bytes are {begin} to {begin + nbytes}, the file ends at {cursor.size}",
            fix="copy or download the file again and compare its size with the source",
        )
    if entry.offset % alignment:
        raise cursor.malformed(f"its offset {entry.offset} is no multiple of {alignment}")
    return GGUFTensor(name, shape, kind, part, begin, nbytes)


def _block_format(cursor: Cursor, number: int, name: str) -> tuple[str, int, int]:
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
