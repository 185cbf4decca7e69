"""Dtypes and tensor types."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import overload

import ml_dtypes
import numpy as np

from .dim import Dim, ceildiv, product, symbols_of

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class DType:
    """An element type: its name in text, width, kind and NumPy counterpart."""

    name: str
    bits: int
    kind: str  # float | int | uint | bool
    numpy: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one element alone; `size` has those of many."""
        return -(-self.bits // 8)

    @property
    def is_packed(self) -> bool:
        """Whether elements share bytes: such a dtype is for storage, and nothing computes in it."""
        return self.bits < 8

    @overload
    def size(self, count: int) -> int: ...
    @overload
    def size(self, count: Dim) -> Dim: ...
    def size(self, count: Dim) -> Dim:
        """Bytes of `count` elements one after another, the last byte filled up."""
        return count * self.nbytes if not self.is_packed else ceildiv(count * self.bits, 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def digits(self) -> int:
        """Binary digits of a value: of a float's fraction with its leading one, of an integer."""
        if self.is_float:
            return ml_dtypes.finfo(self.numpy).nmant + 1
        return self.bits - (self.kind == "int") if self.is_integer else 1

    @property
    def extremes(self) -> tuple[int, int]:
        """The least and the largest of an integer dtype."""
        top = 2**self.digits
        return -top if self.kind == "int" else 0, top - 1

    def holds(self, other: "DType") -> bool:
        """Whether every value of `other` is one of this dtype: a cast to it is exact."""
        if self == other:
            return True
        if self.digits < other.digits or (other.kind == "int" and self.kind == "uint"):
            return False
        if not (self.is_float and other.is_float):
            return not other.is_float and self.kind != "bool"
        own, its = ml_dtypes.finfo(self.numpy), ml_dtypes.finfo(other.numpy)
        steps = own.minexp - own.nmant, its.minexp - its.nmant  # of subnormals
        return own.maxexp >= its.maxexp and steps[0] <= steps[1]

    def element(self, number: bool | int | float) -> bool | int | float:
        """A number as an element of this dtype holds it.

        Floats round to nearest even, integers wrap, and a float as an integer is truncated; one
        out of an integer's range, or NaN, becomes what the machine makes of it.
        """
        if isinstance(number, int) and self.is_integer:
            number &= (1 << self.bits) - 1
            top = self.kind == "int" and number >> (self.bits - 1)
            return number - (1 << self.bits) if top else number
        return self.convert(np.asarray(number)).item()

    def convert(self, array: np.ndarray) -> np.ndarray:
        """An array as this dtype, as `cast` does it: like NumPy, but f8e4m3 saturates."""
        source = dtype_of(array.dtype)
        if source is not None and source.is_packed:  # NumPy converts these to few others
            array = array.astype(np.int8)
        if self.name == "f8e4m3":
            largest = float(ml_dtypes.finfo(self.numpy).max)
            array = np.clip(array, -largest, largest)  # a NaN stays one
        with np.errstate(all="ignore"):
            return array.astype(self.numpy)

    def __str__(self) -> str:
        return self.name


def _dtype(name: str, bits: int, kind: str, numpy: type) -> DType:
    return DType(name, bits, kind, np.dtype(numpy))


f64 = _dtype("f64", 64, "float", np.float64)
f32 = _dtype("f32", 32, "float", np.float32)
f16 = _dtype("f16", 16, "float", np.float16)
bf16 = _dtype("bf16", 16, "float", ml_dtypes.bfloat16)
f8e4m3 = _dtype("f8e4m3", 8, "float", ml_dtypes.float8_e4m3fn)
f8e5m2 = _dtype("f8e5m2", 8, "float", ml_dtypes.float8_e5m2)
i64 = _dtype("i64", 64, "int", np.int64)
i32 = _dtype("i32", 32, "int", np.int32)
i16 = _dtype("i16", 16, "int", np.int16)
i8 = _dtype("i8", 8, "int", np.int8)
u64 = _dtype("u64", 64, "uint", np.uint64)
u32 = _dtype("u32", 32, "uint", np.uint32)
u16 = _dtype("u16", 16, "uint", np.uint16)
u8 = _dtype("u8", 8, "uint", np.uint8)
bool_ = _dtype("bool", 8, "bool", np.bool_)

i4 = _dtype("i4", 4, "int", ml_dtypes.int4)
u4 = _dtype("u4", 4, "uint", ml_dtypes.uint4)
i2 = _dtype("i2", 2, "int", ml_dtypes.int2)
u2 = _dtype("u2", 2, "uint", ml_dtypes.uint2)

_FLOATS = (f64, f32, f16, bf16, f8e4m3, f8e5m2)
_ALL = (*_FLOATS, i64, i32, i16, i8, u64, u32, u16, u8, bool_, i4, u4, i2, u2)
DTYPES = {t.name: t for t in _ALL}
# as the safetensors format spells them: BF16, F8_E4M3
SAFETENSORS = {t.name.upper().replace("F8E", "F8_E"): t for t in DTYPES.values() if not t.is_packed}
_BY_NUMPY = {t.numpy: t for t in DTYPES.values()}


def dtype_of(array_dtype: np.dtype) -> DType | None:
    """Our dtype for a NumPy one, None when there is none."""
    return _BY_NUMPY.get(np.dtype(array_dtype))


@dataclass(frozen=True)
class TensorType:
    """Shape (dims, outermost first) and dtype of a value."""

    shape: Shape
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols in its shape."""
        return frozenset().union(*map(symbols_of, self.shape))

    @property
    def nbytes(self) -> Dim:
        """Bytes when stored row by row, elements that share bytes in rows of whole bytes."""
        if not self.dtype.is_packed or not self.shape:
            return self.dtype.size(self.numel)
        return product(self.shape[:-1]) * self.dtype.size(self.shape[-1])

    def with_shape(self, shape: Iterable[Dim]) -> "TensorType":
        """The same dtype, another shape."""
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> "TensorType":
        """The same shape, another dtype."""
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return _type_text(self)


@lru_cache(maxsize=16384)
def _type_text(type: TensorType) -> str:
    return f"{type.dtype.name}[{', '.join(str(d) for d in type.shape)}]"
