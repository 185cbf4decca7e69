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
from ..ir.safetensors import DamagedHeader, read_header
from ..ir.types import SAFETENSORS, DType, dtype_of

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
    try:
        entries = read_header(data)
    except DamagedHeader as error:
        raise ArtifactError(
            "the weights are damaged", where=where, facts=error.facts, fix="copy the artifact again"
        ) from error
    return {
        e.name: np.frombuffer(data, e.dtype.numpy, e.count, e.begin).reshape(e.shape)
        for e in entries.values()
        if not e.name.startswith(PAD)
    }


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _nbytes(shape: tuple[int, ...], dtype: DType) -> int:
    total = dtype.nbytes
    for size in shape:
        total *= size
    return total
