"""Complex numbers: the IR has none, so importers carry them as pairs of real values."""

from dataclasses import dataclass

import torch

from ..ir.graph import Value

REAL_OF = {
    torch.complex128: torch.float64,
    torch.complex64: torch.float32,
    torch.complex32: torch.float16,
}


@dataclass(frozen=True)
class Pair:
    """Real and imaginary parts, of one type."""

    real: Value
    imag: Value
