"""Operators that are left to NumPy, called on the host while the program runs."""

from collections.abc import Callable

import numpy as np

from ....ir.graph import Value
from ....ir.host_functions import register_function
from ....ir.types import TensorType
from ...declined import Declined
from ..operators import Call, onnx_op
from ..tensors import dtype_of_element


def _called(call: Call, name: str, function: Callable, x: Value, result: TensorType) -> Value:
    """What a function makes of an array; equal names are one function."""
    register_function(name, function)
    return call.b.call(x, function=name, results=(result,))


@onnx_op("BitCast", since=26)
def _bit_cast(call: Call, x: Value, *, to: int) -> Value:
    dtype = dtype_of_element(to)
    if dtype.bits != x.dtype.bits or dtype.is_packed:
        raise Declined(f"the bits of {x.dtype} as {dtype}")
    numpy = dtype.numpy
    return _called(
        call, f"numpy.ndarray.view({dtype})", lambda x: x.view(numpy), x, x.type.with_dtype(dtype)
    )


@onnx_op("Det", since=11)
def _det(call: Call, x: Value) -> Value:
    return _called(call, "numpy.linalg.det", np.linalg.det, x, x.type.with_shape(x.shape[:-2]))
