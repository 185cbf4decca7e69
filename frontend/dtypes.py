"""Torch dtypes as ours, torch's promotion rule, and tensors as NumPy arrays."""

import numpy as np
import torch

from ..ir import types
from ..ir.errors import UnsupportedModel
from ..ir.types import DType

FROM_TORCH = {
    torch.float64: types.f64,
    torch.float32: types.f32,
    torch.float16: types.f16,
    torch.bfloat16: types.bf16,
    torch.float8_e4m3fn: types.f8e4m3,
    torch.float8_e5m2: types.f8e5m2,
    torch.int64: types.i64,
    torch.int32: types.i32,
    torch.int16: types.i16,
    torch.int8: types.i8,
    torch.uint64: types.u64,
    torch.uint32: types.u32,
    torch.uint16: types.u16,
    torch.uint8: types.u8,
    torch.bool: types.bool_,
}
TO_TORCH = {ours: theirs for theirs, ours in FROM_TORCH.items()}

# NumPy knows these only through ml_dtypes, torch does not export them to NumPy: go by the bits
_BY_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def from_torch(dtype: torch.dtype, where: str = "") -> DType:
    """Our dtype; `UnsupportedModel` for one without a counterpart (complex, quantized)."""
    if dtype not in FROM_TORCH:
        raise UnsupportedModel(
            f"values of dtype {dtype} cannot be compiled",
            where=where,
            facts=f"dtypes known: {', '.join(t.name for t in TO_TORCH)}",
            fix="rewrite the module with real floating-point or integer tensors",
        )
    return FROM_TORCH[dtype]


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor as an array; shares memory where the tensor is on the CPU."""
    tensor = tensor.detach().cpu().resolve_neg().contiguous()
    if tensor.dtype in _BY_BITS:
        bits = tensor.view(_BY_BITS[tensor.dtype])
        return bits.numpy().view(from_torch(tensor.dtype).numpy)
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """The inverse of `to_numpy`; shares memory."""
    ours = types.dtype_of(array.dtype)
    dtype = TO_TORCH[ours] if ours is not None else None
    if dtype in _BY_BITS:
        bits = torch.from_numpy(array.view(np.dtype(f"i{array.itemsize}")))
        return bits.view(dtype)
    return torch.from_numpy(array)


def as_declared(number: bool | int | float, dtype: DType) -> bool | int | float:
    """A Python number as an element of `dtype`.

    For f32 and f64 the number stays as it is written unless it overflows: emitters round it, and
    patterns compare it with numbers that are written in decimal too.
    """
    element = dtype.element(number)
    is_wide = dtype.is_float and dtype.bits >= 32
    return float(number) if is_wide and np.isfinite(element) else element


def promote(*operands: tuple[DType, int] | bool | int | float) -> DType:
    """Torch's result dtype for two operands: tensors as (dtype, rank), or Python numbers."""
    samples = (
        torch.empty((1,) * x[1], dtype=TO_TORCH[x[0]], device="meta") if isinstance(x, tuple) else x
        for x in operands
    )
    return FROM_TORCH[torch.result_type(*samples)]
