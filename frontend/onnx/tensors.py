"""Tensors of ONNX files: their element types as ours, and their data as arrays."""

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from ...ir.errors import UnsupportedModel
from ...ir.lazy_arrays import LazyArray
from ...ir.types import DTYPES, DType
from .formats import FORMATS

# ONNX's element types that we have; those of later opsets by name, where this onnx knows them
_NAMES = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "f8e4m3",
    "FLOAT8E5M2": "f8e5m2",
    "BOOL": "bool",
    **{f"INT{bits}": f"i{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)},
}
_DTYPES: dict[int, DType] = {
    TensorProto.DataType.Value(theirs): dtype
    for theirs, dtype in ({n: DTYPES[ours] for n, ours in _NAMES.items()} | FORMATS).items()
    if theirs in TensorProto.DataType.keys()  # noqa: SIM118  no dict
}
ELEMENT_TYPES = {dtype: number for number, dtype in _DTYPES.items()}


def element_name(number: int) -> str:
    """ONNX's name of an element type."""
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number) if known else f"element type {number}"


def dtype_of_element(number: int, where: str = "") -> DType:
    """Our dtype for ONNX's element type; UnsupportedModel for one that we lack."""
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise UnsupportedModel(
            f"tensors of {element_name(number)} are not supported",
            where=where,
            facts=f"supported: {', '.join(map(element_name, sorted(_DTYPES)))}",
            fix="cast them in the model, or leave what needs them to the caller",
        )
    return dtype


def stored_array(
    proto: TensorProto, data: Callable[[], memoryview] | None, nbytes: int | None
) -> LazyArray | str:
    """A tensor as an array that is read when looked up, or what is wrong with it.

    `data` reads raw data that lies elsewhere, of which there are `nbytes`.
    """
    if proto.data_type not in _DTYPES:
        return f"its elements are {element_name(proto.data_type)}"
    if any(extent < 0 for extent in proto.dims):
        return f"its shape is {list(proto.dims)}"
    if proto.HasField("segment"):
        return "it is a segment of a tensor"
    dtype, shape = _DTYPES[proto.data_type], tuple(proto.dims)
    count = math.prod(shape)
    if len(shape) > 32 or max((1, *shape)) >= 1 << 62 or count >= 1 << 62:
        return f"its shape is {list(shape)}"
    if data is None and proto.HasField("raw_data"):
        content = proto.raw_data
        data, nbytes = lambda: memoryview(content), len(content)
    if data is not None:
        needed = dtype.size(count)
        if nbytes != needed:
            return f"{dtype}{list(shape)} takes {needed} bytes, there are {nbytes}"
        return LazyArray(shape, dtype, lambda: _from_raw(dtype, shape, data()))
    return _from_fields(proto, dtype, shape, count)


def _from_raw(dtype: DType, shape: tuple[int, ...], data: memoryview) -> np.ndarray:
    if not dtype.is_packed:
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    proto = TensorProto(data_type=ELEMENT_TYPES[dtype], dims=shape, raw_data=bytes(data))
    return numpy_helper.to_array(proto)


def _from_fields(
    proto: TensorProto, dtype: DType, shape: tuple[int, ...], count: int
) -> LazyArray | str:
    """A tensor whose elements are in the field of numbers that is for its type."""
    field = onnx.helper.tensor_dtype_to_field(proto.data_type)
    numbers = len(getattr(proto, field))
    needed = -(-count * dtype.bits // 8) if dtype.is_packed else count
    if numbers != needed:
        return f"{dtype}{list(shape)} takes {needed} numbers in {field}, there are {numbers}"
    return LazyArray(shape, dtype, lambda: numpy_helper.to_array(proto))
