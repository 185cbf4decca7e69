"""What a sample of an op is: shapes, dtypes and attributes; arrays are made from it.

Floats include infinities and NaN where `special` says that they matter.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tilewright.ir.builder import Builder
from tilewright.ir.graph import Graph
from tilewright.ir.types import DType, bf16, bool_, f16, f32, f64, i32, i64

FLOATS = (f32, f64, bf16, f16)
INTEGERS = (i64, i32)
TO_TORCH = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "i8": torch.int8,
    "i16": torch.int16, "u8": torch.uint8,
}  # fmt: skip
Maker = Callable[[np.random.Generator, tuple[int, ...], DType], np.ndarray]


@dataclass(frozen=True)
class Operand:
    """One operand; `make` draws it where standard-normal numbers will not do."""

    shape: tuple[int, ...]
    dtype: DType = f32
    make: Maker | None = None


@dataclass(frozen=True)
class Sample:
    """A call of an op and what torch says of it. `expected` gets tensors, gives one or a tuple."""

    op: str
    operands: tuple[Operand, ...]
    expected: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    special: bool = False  # also try infinities, NaN, zeros and large numbers
    exact: bool = False  # results must be equal to the bit

    @property
    def id(self) -> str:
        shown = "-".join(f"{o.dtype}{list(o.shape)}".replace(" ", "") for o in self.operands)
        attrs = ",".join(
            f"{k}={v.name if isinstance(v, Graph) else v}" for k, v in self.attrs.items()
        )
        return f"{self.op}-{shown}" + (f"-{attrs}" if attrs else "")

    def graph(self) -> Graph:
        """A graph of this one call."""
        b = Builder(self.op)
        declare_sizes(b, self)
        values = []
        for i, operand in enumerate(self.operands):
            declare = b.state if self.op == "kv_append" and i == 0 else b.input
            values.append(declare(f"x{i}", operand.shape, operand.dtype))
        out = getattr(b, self.op)(*values, **self.attrs)
        return b.graph(out if isinstance(out, tuple) else [out])

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Operands, rounded to their dtypes."""
        arrays = []
        for operand in self.operands:
            make = operand.make or _normal
            array = make(rng, operand.shape, operand.dtype)
            if self.special and operand.dtype.is_float:
                array = with_special(rng, array)
            arrays.append(np.asarray(array).astype(operand.dtype.numpy))
        return arrays


def declare_sizes(b: Builder, sample: Sample) -> None:
    """Declare the dims that the sample's op binds."""
    for name in sample.attrs.get("binds", ()):
        b.dim(name, lo=0)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(-20, 20, shape)
    return rng.standard_normal(shape)


def with_special(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """`array` with a third of its elements made infinite, NaN, zero or large."""
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4, 0.5, -0.5])
    chosen = rng.choice(values, array.shape)
    return np.where(rng.random(array.shape) < 0.34, chosen, array)


def positive(rng, shape, dtype):
    return np.abs(rng.standard_normal(shape)) + 0.1


def nonzero(rng, shape, dtype):
    if dtype.is_float:
        return positive(rng, shape, dtype) * rng.choice([-1, 1], shape)
    return rng.integers(1, 9, shape) * rng.choice([-1, 1], shape)


def below(bound: int) -> Maker:
    return lambda rng, shape, dtype: rng.integers(0, bound, shape)


def distinct(rng, shape, dtype):
    """Distinct numbers, so that the place of the largest is the same for everyone."""
    count = int(np.prod(shape, dtype=int))
    return (rng.permutation(count).reshape(shape) - count // 2) / 4


def wide(x: torch.Tensor) -> torch.Tensor:
    """float32 for halves."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
