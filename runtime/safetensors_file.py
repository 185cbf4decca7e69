"""Writing and memory-mapping of safetensors files whose tensors start at aligned addresses.

The format allows no gaps, so a gap that alignment needs is itself a tensor, `__pad_<n>`, which
other readers see and this one leaves out.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from ..ir.errors import ArtifactError
from ..ir.program import ALIGNMENT
from ..ir.types import SAFETENSORS, DType, dtype_of

MAX_HEADER_BYTES = 100_000_000  # the format's own bound
PAD = "__pad_"
_OF = {dtype: name for name, dtype in SAFETENSORS.items()}


class _Sink(Protocol):
    def write(self, data: Any, /) -> Any: ...


def write_safetensors(
    file: _Sink, arrays: Mapping[str, Any], facts: Mapping[str, tuple[tuple[int, ...], DType]]
) -> None:
    """Write `arrays`, one in memory at a time. `facts`: the shape and dtype of each, in order."""
    header: dict[str, Any] = {}
    end = 0
    for name, (shape, dtype) in facts.items():
        gap = -end % ALIGNMENT
        if gap:
            header[f"{PAD}{end}"] = _entry("U8", (gap,), end, end + gap)
        begin, end = end + gap, end + gap + _nbytes(shape, dtype)
        header[name] = _entry(_OF[dtype], shape, begin, end)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    at = 0
    for name, (shape, dtype) in facts.items():
        file.write(b"\0" * (-at % ALIGNMENT))
        at += -at % ALIGNMENT
        array = np.ascontiguousarray(arrays[name])
        assert array.size * array.itemsize == _nbytes(shape, dtype), f"{name} changed its size"
        file.write(array.reshape(-1).view(np.uint8).data)
        at += array.nbytes


def facts_of(arrays: Mapping[str, Any], names: Iterable[str]) -> dict[str, tuple[tuple, DType]]:
    """Shape and dtype of each named array, as `write_safetensors` wants them.

    A mapping that computes its arrays when asked may tell them itself: `arrays.facts(name)`.
    """
    facts = {}
    for name in names:
        if hasattr(arrays, "facts"):
            facts[name] = arrays.facts(name)
            continue
        array = np.asarray(arrays[name])
        dtype = dtype_of(array.dtype)
        assert dtype is not None, f"{name} has the dtype {array.dtype}"
        facts[name] = (array.shape, dtype)
    return facts


def read_safetensors(data: Any, where: str) -> dict[str, np.ndarray]:
    """Name -> array over `data` (a memory map or bytes), which is not copied.

    ArtifactError when the header does not describe exactly the bytes there are.
    """
    size = len(data)
    if size < 8:
        raise _damaged(where, f"it has {size} bytes, and a header begins with 8")
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise _damaged(where, f"its header claims {length} bytes of {size}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(where, "its header is no JSON object")
    start = 8 + length
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _read_entry(name, entry, where)
        if not 0 <= begin <= end <= size - start or end - begin != _nbytes(shape, dtype):
            raise _damaged(
                where,
                f"{name} is {dtype}{list(shape)} at bytes {begin} to {end} of {size - start}",
            )
        if not name.startswith(PAD):
            flat = np.frombuffer(data, dtype.numpy, (end - begin) // dtype.nbytes, start + begin)
            arrays[name] = flat.reshape(shape)
    return arrays


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _read_entry(name: str, entry: Any, where: str) -> tuple[DType, tuple[int, ...], int, int]:
    if isinstance(entry, dict) and entry.get("dtype") in SAFETENSORS:
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2 and len(shape) <= 64:
            return SAFETENSORS[entry["dtype"]], tuple(shape), *offsets
    raise _damaged(where, f"the entry of {name[:100]} is {str(entry)[:200]}")


def _are_counts(value: Any) -> bool:
    # a bool is an int in Python, and not one here
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _nbytes(shape: tuple[int, ...], dtype: DType) -> int:
    total = dtype.nbytes
    for size in shape:
        total *= size
    return total


def _damaged(where: str, facts: str) -> ArtifactError:
    return ArtifactError(
        "the weights are damaged", where=where, facts=facts, fix="copy the artifact again"
    )
