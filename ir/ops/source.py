"""Ops without tensor operands."""

import numpy as np

from ..dim import Dim
from ..index_map import Fill, Number
from ..op import op
from ..types import DType, Shape, TensorType, i64


@op(kind="source")
def full(*, value: float | int | bool, shape: Shape, dtype: DType):
    """A tensor whose every element is value."""
    return TensorType(tuple(shape), dtype)


@full.set_reference
def _(*, value, shape, dtype):
    return np.full(shape, value, dtype.numpy)


@full.set_index_map
def _(at, index, *, value, shape, dtype):
    return Fill(value)


@op(kind="source")
def iota(*, length: Dim, start: Dim = 0, step: int = 1, dtype: DType = i64):
    """start + step * [0, 1, ..., length - 1]."""
    return TensorType((length,), dtype)


@iota.set_reference
def _(*, length, start, step, dtype):
    return (start + step * np.arange(length)).astype(dtype.numpy)


@iota.set_index_map
def _(at, index, *, length, start, step, dtype):
    return Number(index[0] * step + start)


@op(kind="source")
def dim_value(*, value: Dim, dtype: DType = i64):
    """A dim as a tensor of rank 0."""
    return TensorType((), dtype)


@dim_value.set_reference
def _(*, value, dtype):
    return np.asarray(value).astype(dtype.numpy)


@dim_value.set_index_map
def _(at, index, *, value, dtype):
    return Number(value)
