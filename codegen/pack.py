"""How a weight's elements are ordered in memory, so that a kernel reads whole cache lines in order.

`plain` is row-major. `panel32` of a weight [.., N, K] is [.., ceil(N/32), K, 32]: 32 rows side by
side, zero where N is not a multiple. `panel32i`, for elements of 16 bits, is the same with each
line interleaved, row j beside row j + 16, so that one load of 32-bit lanes holds two vectors of
rows (in the low and the high halves).
"""

from math import prod

import numpy as np

from ..ir.dim import Dim, ceildiv, floordiv, mod
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32

PANEL = 32
_STEP = 64  # panels packed at a time
MIN_PANEL_ROWS = 24  # below this, padding to 32 rows costs more than reading in order gains


def weight_layout(shape: tuple[Dim, ...], dtype: DType, target: Target) -> str:
    """The layout in which a contraction wants a weight [.., N, K]."""
    known = all(isinstance(d, int) for d in shape)
    if target.is_gpu or len(shape) < 2 or not known or dtype not in (bf16, f16, f32):
        return "plain"
    if shape[-2] < MIN_PANEL_ROWS:
        return "plain"
    return "panel32i" if dtype.nbytes == 2 else "panel32"


def packed_shape(layout: str, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of the array that `pack` makes."""
    if layout == "plain":
        return shape
    _require_panel(layout)
    *batch, n, k = shape
    return (*batch, ceildiv(n, PANEL), k, PANEL)


def pack(layout: str, array: np.ndarray) -> np.ndarray:
    """`array` in `layout`, contiguous; of shape `packed_shape`."""
    if layout == "plain":
        # ascontiguousarray makes a vector of a scalar
        return np.ascontiguousarray(array).reshape(array.shape)
    _require_panel(layout)
    *batch, n, k = array.shape
    panels = -(-n // PANEL)
    out = np.zeros((prod(batch), panels, k, PANEL), array.dtype)
    lanes = _lanes(layout)
    for source, target in zip(array.reshape(-1, n, k), out, strict=True):
        full = n // PANEL
        rows = source[: full * PANEL].reshape(full, PANEL, k)
        for at in range(0, full, _STEP):  # in steps: the copy in another order is a temporary
            stop = min(at + _STEP, full)
            target[at:stop] = rows[at:stop, lanes].transpose(0, 2, 1)
        if full != panels:
            last = np.zeros((PANEL, k), array.dtype)
            last[: n - full * PANEL] = source[full * PANEL :]
            target[full] = last[lanes].T
    return out.reshape(*batch, panels, k, PANEL)


def unpack(layout: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `pack` for a weight of `shape`."""
    if layout == "plain":
        return array.reshape(shape)
    _require_panel(layout)
    *batch, n, k = shape
    panels = array.reshape(prod(batch), -1, k, PANEL)
    rows = np.empty((len(panels), panels.shape[1], PANEL, k), array.dtype)
    rows[:, :, _lanes(layout)] = panels.transpose(0, 1, 3, 2)
    return rows.reshape(len(panels), -1, k)[:, :n].reshape(shape)


def packed_offset(layout: str, shape: tuple[Dim, ...], index: tuple[Dim, ...]) -> Dim:
    """The element at which `index` of a weight of `shape` lies."""
    offset: Dim = 0
    if layout == "plain":
        for i, d in zip(index, shape, strict=True):
            offset = offset * d + i
        return offset
    _require_panel(layout)
    *batch, n, k = shape
    for i, d in zip(index[:-2], batch, strict=True):
        offset = offset * d + i
    row, column = index[-2:]
    lane = mod(row, PANEL)
    if layout == "panel32i":
        lane = mod(lane, PANEL // 2) * 2 + floordiv(lane, PANEL // 2)
    panel = offset * ceildiv(n, PANEL) + floordiv(row, PANEL)
    return (panel * k + column) * PANEL + lane


def _lanes(layout: str) -> np.ndarray:
    """Which row of a panel lies at each position of its line."""
    order = np.arange(PANEL)
    return order.reshape(2, -1).T.reshape(-1) if layout == "panel32i" else order


def _require_panel(layout: str) -> None:
    if layout not in ("panel32", "panel32i"):
        raise ValueError(f"no weight layout {layout!r}: there are plain, panel32 and panel32i")
