"""How reductions and scans put two values together, and contractions two operands, as data.

`Combine("x + y", 0)` is a sum. From it follow the reference and the generated code.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from .faults import checked_index
from .scalar import Scalar, evaluate_scalar, function_over, parse_scalar
from .types import DType

Identity = float | int | bool | Literal["lowest", "highest"]


@dataclass(frozen=True)
class Combine:
    """`scalar`, over x (what comes earlier) and y (what comes later), is associative.

    `identity` changes nothing it is combined with; "lowest" and "highest" are those of the dtype
    (of a float, the infinities). With `picks_index` the result is not the value but the index
    (int64) of the element that the combination takes: the first of equals, and a NaN before all.
    """

    scalar: str
    identity: Identity = 0
    picks_index: bool = False

    @cached_property
    def tree(self) -> Scalar:
        """The scalar, parsed."""
        return parse_scalar(self.scalar, ("x", "y"), ())

    @cached_property
    def function(self) -> str | None:
        """The function of ir/scalar.py that it is as it stands ("add"), None for an expression."""
        return function_over(self.tree, ("x", "y"))

    def identity_of(self, dtype: DType) -> float | int | bool:
        """The identity among the elements of `dtype`."""
        if not isinstance(self.identity, str):
            return self.identity
        is_high = self.identity == "highest"
        if dtype.is_float:
            return float("inf") if is_high else float("-inf")
        if dtype.kind == "bool":
            return is_high
        least, largest = dtype.extremes
        return largest if is_high else least


def reduced(
    combine: Combine, x: np.ndarray, axes: Sequence[int], dtype: DType
) -> tuple[np.ndarray, int]:
    """The reference of a reduction, axes gone, and of how many elements each result is.

    Neighbours are combined until one value is left, so that errors of rounding grow with the
    logarithm of the length. `dtype` is that of x as declared.
    """
    gone = sorted(axis % x.ndim for axis in axes)
    kept = [axis for axis in range(x.ndim) if axis not in gone]
    shape = tuple(x.shape[axis] for axis in kept)
    count = math.prod(x.shape[axis] for axis in gone)
    rows = x.transpose(*gone, *kept).reshape(count, *shape)
    if not count:
        rows = np.full((1, *shape), combine.identity_of(dtype), x.dtype)
    places = _places(combine, rows)
    while len(rows) > 1:
        even = len(rows) // 2 * 2
        pair = slice(0, even, 2), slice(1, even, 2)
        places, rows = (
            np.concatenate([made, old[even:]])
            for made, old in zip(_combined(combine, rows, places, *pair), (places, rows))
        )
    return (places if combine.picks_index else rows)[0], count


def scanned(combine: Combine, x: np.ndarray, axis: int) -> np.ndarray:
    """The reference of a scan: each element combined with all before it, by doubling distances.

    Hillis and Steele, "Data parallel algorithms", 1986.
    """
    rows = np.moveaxis(x, axis, 0)
    places = _places(combine, rows)
    distance = 1
    while distance < len(rows):
        pair = slice(None, -distance), slice(distance, None)
        places, rows = (
            np.concatenate([old[:distance], made])
            for made, old in zip(_combined(combine, rows, places, *pair), (places, rows))
        )
        distance *= 2
    return np.moveaxis(places if combine.picks_index else rows, 0, axis)


def _places(combine: Combine, rows: np.ndarray) -> np.ndarray:
    """Where each element stands, where that is the result; else one number a row will do."""
    places = np.arange(len(rows))
    if not combine.picks_index:
        return places
    return np.broadcast_to(places.reshape(-1, *[1] * (rows.ndim - 1)), rows.shape)


def _combined(
    combine: Combine, rows: np.ndarray, places: np.ndarray, earlier: slice, later: slice
) -> tuple[np.ndarray, np.ndarray]:
    """Places and rows after two slices of both are combined."""
    x, y = rows[earlier], rows[later]
    both = np.asarray(evaluate_scalar(combine.tree, {"x": x, "y": y}, {}), rows.dtype)
    if not combine.picks_index:
        return places[earlier], both
    is_later = np.where(both != both, (y != y) & (x == x), both != x)
    return np.where(is_later, places[later], places[earlier]), both


@dataclass(frozen=True)
class Contraction:
    """acc_i[..., m, n] = the sum over k of x[..., m, k] * w_i[..., k, n], for each w.

    `x` and `ws` name the last two axes of the operands in the order in which they lie ("mk"; "kn",
    or "nk" as linear layers store it); leading axes broadcast. The result is `epilogue`, in the
    scalar language, over acc0, acc1, ...

    Where it `is_grouped`, x is [m, k], each w [g, k, n], and the last operand is an index, integers
    [m] in [0, g): row m of x meets the matrix index[m] of each w.
    """

    x: str = "mk"
    ws: tuple[str, ...] = ("kn",)
    epilogue: str = "acc0"
    is_grouped: bool = False

    @cached_property
    def tree(self) -> Scalar:
        """The epilogue, parsed."""
        return parse_scalar(self.epilogue, tuple(f"acc{i}" for i in range(len(self.ws))), ())

    def of(self, x: np.ndarray, *ws: np.ndarray) -> np.ndarray:
        """The reference."""
        x = _ordered(x, self.x, "mk")
        index = None
        if self.is_grouped:
            index = checked_index("grouped_matmul", ws[-1], ws[0].shape[0])
            ws = ws[:-1]
        matrices = [_ordered(w, roles, "kn") for w, roles in zip(ws, self.ws, strict=True)]
        sums = [x @ w if index is None else (x[:, :, None] * w[index]).sum(1) for w in matrices]
        return evaluate_scalar(self.tree, {f"acc{i}": acc for i, acc in enumerate(sums)}, {})


def _ordered(array: np.ndarray, roles: str, wanted: str) -> np.ndarray:
    return array if roles == wanted else np.swapaxes(array, -1, -2)
