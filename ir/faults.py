"""Faults of the data: an index outside its axis, an integer divided by zero, and how they read."""

from typing import Any

import numpy as np

from .errors import DivisionByZero, IndexOutOfRange, TilewrightError


def index_fault(
    op: str, index: int, size: int, *, wraps: bool = False, loc: str | None = None
) -> IndexOutOfRange:
    """The error of `op` at `loc`, given `index` for an axis of `size`."""
    least = -size if wraps else 0
    return IndexOutOfRange(
        f"index {index} is out of range for an axis of size {size}",
        where=_where(op, loc),
        facts=f"valid are {least} to {size - 1}" if size else "the axis is empty: none is valid",
        fix="pass indices inside the axis, or clamp them in the model",
    )


def division_fault(op: str, *, loc: str | None = None) -> DivisionByZero:
    """The error of `op` at `loc`, given the divisor 0."""
    return DivisionByZero(
        "an integer is divided by zero",
        where=_where(op, loc),
        fix="pass divisors other than 0, or replace zeros in the model (torch.where)",
    )


def located(error: TilewrightError, loc: str | None) -> TilewrightError:
    """The same error, at `loc` too."""
    return type(error)(error.what, where=_where(error.where, loc), facts=error.facts, fix=error.fix)


def _where(op: str, loc: str | None) -> str:
    return f"{op} ({loc})" if loc else op


def checked_index(op: str, index: Any, size: int, *, wraps: bool = False) -> Any:
    """`index` counted from the front. IndexOutOfRange names the first outside the axis.

    Negative ones are counted from the end where the op `wraps`, as `x[i]` does.
    """
    index = np.asarray(index)
    least = -size if wraps else 0
    wrong = index[(index < least) | (index >= size)]
    if wrong.size:
        raise index_fault(op, int(wrong[0]), size, wraps=wraps)
    return np.where(index < 0, index + size, index).astype(index.dtype)


def checked_divisor(op: str, x: Any, divisor: Any) -> Any:
    """`divisor`. DivisionByZero when it has a zero, divides something, and both are integers."""
    is_whole = all(np.asarray(a).dtype.kind in "iu" for a in (x, divisor))
    if is_whole and not np.all(divisor) and np.broadcast(x, divisor).size:
        raise division_fault(op)
    return divisor
