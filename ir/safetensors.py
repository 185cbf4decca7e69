"""The header of a safetensors file: what it says, and all that is wrong with it.

The format (huggingface/safetensors, README): 8 bytes with the header's length, little-endian; the
header, a JSON object in UTF-8 from each name to {dtype, shape, data_offsets}; the data, which the
tensors cover without overlap and without gaps.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import TilewrightError, listed, shown
from .types import SAFETENSORS, DType

# The format allows 100 MB. Parsed JSON takes up to 22 times its text, and this is room for 150,000
# tensors in one file.
MAX_HEADER_BYTES = 20 << 20
MAX_RANK = 64  # of a NumPy array
_METADATA = "__metadata__"


class DamagedHeader(TilewrightError):
    """The header does not describe the file; `facts` says each way in which it does not."""


@dataclass(frozen=True)
class Entry:
    """One tensor: `begin` is where its first byte is in the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    def view(self, data: Any) -> np.ndarray:
        """The tensor over the file's bytes (or memory map), which are not copied."""
        count = self.nbytes // self.dtype.nbytes
        return np.frombuffer(data, self.dtype.numpy, count, self.begin).reshape(self.shape)

    @property
    def is_aligned(self) -> bool:
        """Whether it starts at a multiple of its element's size."""
        return self.begin % self.dtype.nbytes == 0


def read_header(data: Any) -> dict[str, Entry]:
    """The tensors of a file's bytes (or memory map) by name. DamagedHeader lists what is wrong."""
    size = len(data)
    if size < 8:
        raise _damaged([f"it has {size} bytes; the header's length takes 8"])
    (length,) = struct.unpack("<Q", data[:8])
    if length > size - 8:
        raise _damaged([f"a header of {length} bytes in a file of {size}"])
    if length > MAX_HEADER_BYTES:
        raise _damaged([f"a header of {length} bytes; at most {MAX_HEADER_BYTES} are read"])
    header = _parse(bytes(data[8 : 8 + length]))
    metadata = header.pop(_METADATA, {})
    problems = []
    if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
        problems.append(f"{_METADATA} is no object of texts")
    entries = {}
    for name, value in header.items():
        entry = _entry(name, value, 8 + length)
        if isinstance(entry, str):
            problems.append(entry)
        else:
            entries[name] = entry
    problems = problems or _places(entries, 8 + length, size)
    if problems:
        raise _damaged(problems)
    return entries


def strict_json(text: str) -> Any:
    """JSON as its standard has it: no name twice, no NaN. ValueError or RecursionError if not."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} is there twice")
    return result


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = strict_json(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged([f"its header is not JSON: {str(error)[:200]}"]) from None
    if not isinstance(header, dict):
        raise _damaged(["its header is not a JSON object"])
    return header


def _entry(name: str, value: Any, start: int) -> Entry | str:
    """The entry, or what is wrong with it."""
    said = f"the entry of {shown(name)} is {shown(value)}"
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        return said
    kind, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not _are_counts(shape) or not _are_counts(place) or len(place) != 2 or len(shape) > MAX_RANK:
        return said
    if not isinstance(kind, str) or kind not in SAFETENSORS:
        return f"{shown(name)} has the dtype {shown(kind)}; those read are {', '.join(SAFETENSORS)}"
    dtype, (begin, end) = SAFETENSORS[kind], place
    needed = largest = dtype.nbytes
    for extent in shape:
        needed *= extent
        largest *= extent or 1  # NumPy bounds the strides of empty arrays too
    if end - begin != needed or largest >= 1 << 62:
        return (
            f"{shown(name)}, {dtype}{shown(shape)}, takes {shown(needed)} bytes;"
            f" its place is {begin} to {end}"
        )
    return Entry(name, dtype, tuple(shape), start + begin, needed)


def _are_counts(value: Any) -> bool:
    # a bool is an int in Python, and not one here
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _places(entries: dict[str, Entry], start: int, size: int) -> list[str]:
    """Overlaps, gaps, and tensors outside of the file."""
    problems, at, before = [], start, "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.begin, e.nbytes)):
        begin, end = entry.begin - start, entry.begin + entry.nbytes - start
        if entry.begin < at:
            problems.append(f"{shown(entry.name)} at {begin} to {end} lies over {before}")
        elif entry.begin > at:
            problems.append(f"{entry.begin - at} bytes before {shown(entry.name)} belong to nobody")
        if start + end > size:
            problems.append(f"{shown(entry.name)} is at {begin} to {end} of {size - start} bytes")
        if start + end >= at:
            at, before = start + end, shown(entry.name)
    if at < size:
        problems.append(f"{size - at} bytes after {before} belong to nobody")
    return problems


def _damaged(problems: list[str]) -> DamagedHeader:
    return DamagedHeader("damaged or truncated safetensors file", facts=listed(problems))
