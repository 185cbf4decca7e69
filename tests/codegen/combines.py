"""Combines that no language has a word for, and kernels that reduce rows by several combines."""

from tilewright.codegen.loops import (
    Axis,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Reduction,
    Ref,
    Store,
    widened,
)
from tilewright.ir.combine import Combine
from tilewright.ir.dim import Dim, symbol, symbols_of
from tilewright.ir.op import OPS
from tilewright.ir.types import TensorType

# compound growth, the first that is not 0, where the farthest from 0 lies; bits
OTHERS = (
    Combine("x + y + x * y", 0),
    Combine("where(x == 0, y, x)", 0),
    Combine("where(abs(y) > abs(x), y, x)", 0, picks_index=True),
)
BITS = (Combine("x ^ y", 0), Combine("x | y", 0), Combine("x & y", -1))


def named(*ops: str) -> list[Combine]:
    """The combines of ops."""
    return [OPS[op].combine for op in ops]


N, W = symbol("n"), symbol("w")


def one_of_each(dtype, combines, rows: Dim = N, width: Dim = W) -> LoopKernel:
    """Rows [rows, width]: every reduction in one phase, each into its own output."""
    i, r = symbol("i"), symbol("r")
    x = Load(0, i * width + r, widened(dtype))
    phase = tuple(Reduction(f"red{k}", c, x) for k, c in enumerate(combines))
    stores = tuple(Store(1 + k, i, Ref(p.name, p.dtype)) for k, p in enumerate(phase))
    params = (Param(TensorType((rows, width), dtype), False),)
    params += tuple(Param(TensorType((rows,), p.dtype), True) for p in phase)
    part = Reduce((Axis("i", rows),), Axis("r", width), (phase,), stores, ())
    return LoopKernel(
        params, (part,), tuple(sorted(symbols_of(rows) | symbols_of(width))), "reduce"
    )
