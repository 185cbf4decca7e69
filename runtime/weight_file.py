"""The weights of an artifact: a safetensors file whose tensors start at aligned addresses.

The format allows no gaps, so a gap that alignment needs is itself a tensor, `__pad_<n>`, which
other readers see and this one leaves out.
"""

import json
import struct
from typing import Any, Protocol

import numpy as np

from ..ir.lazy_arrays import LazyArrays
from ..ir.program import ALIGNMENT
from ..ir.safetensors import DamagedHeader, read_header
from ..ir.types import SAFETENSORS
from .storage import damaged

PAD = "__pad_"
_OF = {dtype: name for name, dtype in SAFETENSORS.items()}


class _Sink(Protocol):
    def write(self, data: Any, /) -> Any: ...


def write_weights(file: _Sink, arrays: LazyArrays) -> None:
    """Write `arrays` in their order, one in memory at a time."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.lazy_items():
        gap = -end % ALIGNMENT
        if gap:
            header[f"{PAD}{end}"] = _entry("U8", (gap,), end, end + gap)
        begin, end = end + gap, end + gap + array.nbytes
        header[name] = _entry(_OF[array.dtype], array.shape, begin, end)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    file.write(struct.pack("<Q", len(text)) + text)
    at = 0
    for _, array in arrays.lazy_items():
        file.write(b"\0" * (-at % ALIGNMENT))
        at += -at % ALIGNMENT
        file.write(array.load().reshape(-1).view(np.uint8).data)
        at += array.nbytes


def read_weights(data: Any, where: str) -> dict[str, np.ndarray]:
    """Name -> array over `data` (a memory map or bytes), which is not copied.

    ArtifactError when the header does not describe exactly the bytes there are.
    """
    try:
        entries = read_header(data)
    except DamagedHeader as error:
        raise damaged("the weights are", where, error.facts) from error
    return {e.name: e.view(data) for e in entries.values() if not e.name.startswith(PAD)}


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
