"""Operators that are left to NumPy, called on the host while the program runs."""

import numpy as np

from ....ir.graph import Value
from ...declined import Declined
from ..operators import Call, onnx_op
from ..tensors import dtype_of_element


@onnx_op("BitCast", since=26)
def _bit_cast(call: Call, x: Value, *, to: int) -> Value:
    dtype = dtype_of_element(to)
    if dtype.bits != x.dtype.bits or dtype.is_packed:
        raise Declined(f"the bits of {x.dtype} as {dtype}")
    numpy = dtype.numpy
    result = x.type.with_dtype(dtype)
    return call.called(f"numpy.ndarray.view({dtype})", lambda x: x.view(numpy), [x], [result])


@onnx_op("Det", since=11)
def _det(call: Call, x: Value) -> Value:
    result = x.type.with_shape(x.shape[:-2])
    return call.called("numpy.linalg.det", np.linalg.det, [x], [result])
