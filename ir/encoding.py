"""How the elements of a tensor lie in memory: one notion for weights, activations and caches.

Order. `rows` is row-major. `panel32` of a weight [.., N, K] is [.., ceil(N/32), K, 32]: 32 rows
side by side, zero where N is not a multiple; a kernel then reads whole cache lines in order.
`panel32i`, for elements of 16 bits, is the same with each line interleaved, row j beside row
j + 16, so that one load of 32-bit lanes holds two vectors of rows (in the low and the high halves).
`panel32p`, for integers, is [.., ceil(N/32), ceil(K/2), 32, 2]: two neighbours of a row side by
side, so that 32-bit lanes hold what an instruction multiplies and adds in pairs. `panel32q`, for
bytes that meet bytes, is [.., ceil(N/32), ceil(K/4), 32, 4]: four neighbours side by side.

Packing. Elements of fewer than 8 bits share bytes: neighbours, the first in the lowest bits. A row
ends with its last byte.

Meaning. Of codes, (code - zero) * scale is the value (the op `dequantize`): `group` neighbours
along the last axis share them, and `scale` and `zero` name the tensors that hold them.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from .dim import Dim, ceildiv, evaluate, floordiv, mod
from .indexing import linearize
from .types import DType, TensorType, u8

PANEL = 32
_STEP = 64  # panels packed at a time
ORDERS = ("rows", "panel32", "panel32i", "panel32p", "panel32q")
_TOGETHER = {"panel32p": 2, "panel32q": 4}  # neighbours of a row, side by side


@dataclass(frozen=True)
class Encoding:
    """Order and meaning of a tensor's elements; its dtype says how many bits each has."""

    order: str = "rows"
    group: int = 0  # 0: the elements are the values
    scale: str | None = None
    zero: str | None = None

    def __post_init__(self):
        if self.order not in ORDERS:
            raise ValueError(f"no order of elements {self.order!r}: there are {', '.join(ORDERS)}")
        if self.group < 0 or (self.group > 0) != (self.scale is not None):
            raise ValueError(f"{self} is no encoding: a group of 1 or more has a scale")

    @property
    def is_panel(self) -> bool:
        return self.order != "rows"

    def stored(self, type: TensorType) -> TensorType:
        """The array that lies in memory for a tensor of `type`: `pack` makes it.

        ValueError where there are no panels of such a tensor.
        """
        if self.is_panel:
            if type.rank < 2 or type.dtype.is_packed:
                raise ValueError(f"no {self.order} of {type}: it has whole elements on two axes")
            *batch, n, k = type.shape
            panels = (*batch, ceildiv(n, PANEL))
            if count := _TOGETHER.get(self.order):
                return type.with_shape((*panels, ceildiv(k, count), PANEL, count))
            return type.with_shape((*panels, k, PANEL))
        if not type.dtype.is_packed:
            return type
        *batch, k = type.shape or (1,)
        return TensorType((*batch, type.dtype.size(k)), u8)

    def nbytes(self, type: TensorType) -> Dim:
        """Bytes in memory, padding included."""
        return self.stored(type).nbytes

    def place(self, type: TensorType, index: tuple[Dim, ...]) -> tuple[Dim, Dim]:
        """(element of the stored array, bit in it) at which the element `index` begins."""
        if self.is_panel:
            return self._panel_place(type.shape, index), 0
        shape = type.shape
        bit: Dim = 0
        if type.dtype.is_packed and shape:
            *batch, k = shape
            *outer, last = index
            per = 8 // type.dtype.bits
            shape, index = (*batch, type.dtype.size(k)), (*outer, floordiv(last, per))
            bit = mod(last, per) * type.dtype.bits
        return linearize(index, shape), bit

    def pack(self, array: np.ndarray, dtype: DType) -> np.ndarray:
        """The stored array, contiguous, of elements of `dtype`, one an item of `array`."""
        if self.is_panel:
            lanes = sorted(range(PANEL), key=lambda row: evaluate(self._lane(row), {}))
            count = _TOGETHER.get(self.order)
            return _together(array, count) if count else _to_panels(array, lanes)
        if dtype.is_packed:
            return _to_bytes(array, dtype)
        # ascontiguousarray makes a vector of a scalar
        return np.ascontiguousarray(array).reshape(array.shape)

    # ---- panels ----

    def _panel_place(self, shape: tuple[Dim, ...], index: tuple[Dim, ...]) -> Dim:
        *batch, n, k = shape
        *outer, row, column = index
        panel = linearize(outer, batch) * ceildiv(n, PANEL) + floordiv(row, PANEL)
        if count := _TOGETHER.get(self.order):
            line = panel * ceildiv(k, count) + floordiv(column, count)
            return (line * PANEL + mod(row, PANEL)) * count + mod(column, count)
        return (panel * k + column) * PANEL + self._lane(row)

    def _lane(self, row: Dim) -> Dim:
        """Where a row lies in the lines of its panel."""
        lane, half = mod(row, PANEL), PANEL // 2
        return mod(lane, half) * 2 + floordiv(lane, half) if self.order == "panel32i" else lane

    def __str__(self) -> str:
        text = self.order
        if self.group:
            text += f", groups of {self.group} by {self.scale}"
        return text + (f" from {self.zero}" if self.zero is not None else "")


ROWS = Encoding()


def _to_bytes(array: np.ndarray, dtype: DType) -> np.ndarray:
    per, *batch, k = 8 // dtype.bits, *(array.shape or (1,))
    codes = np.zeros((*batch, dtype.size(k) * per), np.uint8)
    codes[..., :k] = array.astype(np.int8).astype(np.uint8) & (2**dtype.bits - 1)
    shifts = np.arange(per, dtype=np.uint8) * np.uint8(dtype.bits)
    return np.bitwise_or.reduce(codes.reshape(*batch, dtype.size(k), per) << shifts, axis=-1)


def _together(array: np.ndarray, count: int) -> np.ndarray:
    """Panels in whose lines stand `count` neighbours of each row."""
    *batch, n, k = array.shape
    panels, lines = -(-n // PANEL), -(-k // count)
    whole = np.zeros((*batch, panels * PANEL, lines * count), array.dtype)
    whole[..., :n, :k] = array
    turned = np.swapaxes(whole.reshape(*batch, panels, PANEL, lines, count), -3, -2)
    return np.ascontiguousarray(turned)


def _to_panels(array: np.ndarray, lanes: list[int]) -> np.ndarray:
    """Panels in whose lines stand the rows `lanes`."""
    *batch, n, k = array.shape
    panels = -(-n // PANEL)
    out = np.zeros((prod(batch), panels, k, PANEL), array.dtype)
    for source, target in zip(array.reshape(prod(batch), n, k), out, strict=True):
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
