"""Operands of a contraction as tiles of a matrix in memory, which a copy engine fetches whole.

On Hopper and later one instruction copies a tile into shared memory and fills what lies outside the
matrix with zeros: no thread computes an address or a mask.
"""

from dataclasses import dataclass

from ...ir.dim import Dim, divided, floordiv, symbol, symbols_of
from ...ir.facts import Facts
from ..loops import Axis, Load, LoopKernel
from ..templates.template import factor

LINE = 16  # bytes: what the distance of two rows must be a multiple of
LONGEST = 256  # elements of a tile along each dim
WIDE = 128  # bytes: no memory holds 2^31 rows that are so far apart, and places have 32 bits


@dataclass(frozen=True)
class Matrix:
    """A parameter as `shape` rows and columns; the operand's first element lies at `at`.

    `own`: the axis of the operand beside k. `is_turned`: rows are along k, columns along `own`.
    """

    param: int
    own: str
    shape: tuple[Dim, Dim]
    at: tuple[Dim, Dim]
    is_turned: bool


def matrix_of(
    load: Load, own: Axis, k: Axis, tile: tuple[int, int], kernel: LoopKernel, facts: Facts
) -> Matrix | None:
    """The matrix that holds what `load` reads along its own axis and k; None where none does.

    `tile`: elements along own and k. What a tile holds past the end of k is zero or not read.
    """
    type = kernel.params[load.param].type
    strides = factor(load.offset, own.name), factor(load.offset, k.name)
    if load.indirect or type.dtype.bits < 8 or max(tile) > LONGEST or 1 not in strides:
        return None
    is_turned = strides[1] != 1
    stride = max(strides)  # both 1: a row that is read again and again, or one of one element
    row_axis, column_axis = (k, own) if is_turned else (own, k)
    rest = load.offset - stride * symbol(row_axis.name) - symbol(column_axis.name)
    if not symbols_of(rest).isdisjoint((own.name, k.name)):
        return None  # rows of several axes, that lie across one another
    at = divided(rest, stride)
    shape = floordiv(type.numel, stride), stride
    if (
        stride * type.dtype.nbytes % LINE
        or tile[0 if is_turned else 1] * type.dtype.nbytes < LINE
        or not facts.proved_le(0, at[1])
        or not facts.proved_le(at[1] + column_axis.extent, stride)
        or not (stride * type.dtype.nbytes >= WIDE or facts.fits_32_bits(shape[0] + LONGEST))
        or not all(map(facts.fits_32_bits, (*at, k.extent)))
    ):
        return None
    # past the end of k lie zeros, other rows, or other columns
    is_last = at[0 if is_turned else 1] == 0 and shape[0 if is_turned else 1] == k.extent
    if not is_last and not facts.proved_multiple(k.extent, tile[1]):
        return None
    return Matrix(load.param, own.name, shape, at, is_turned)


def distance(first: Matrix, second: Matrix, rows: Dim) -> int | None:
    """How many rows `second` lies behind `first`, where one copy can fetch a tile of both.

    `rows`: of each. None where they do not lie so in one parameter.
    """
    if first.is_turned or (first.param, first.shape) != (second.param, second.shape):
        return None
    behind = second.at[0] - first.at[0]
    is_start = first.at == (0, 0) and second.at[1] == 0
    is_apart = is_start and isinstance(behind, int) and isinstance(rows, int) and behind >= rows
    return behind if is_apart else None
