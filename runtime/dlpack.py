"""DLPack, the exchange format for arrays in memory, read and written through ctypes.

NumPy's own reader knows no bfloat16 and no float8, and no memory but the CPU's; this one takes any
producer's capsule apart and, the other way, hands out arrays that NumPy cannot name.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import types
from ..ir.errors import ShapeError
from ..ir.types import DType

CPU = (1, 0)
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool", 10: "f8e4m3", 12: "f8e5m2"}
_DTYPES = {
    (2, 64): types.f64,
    (2, 32): types.f32,
    (2, 16): types.f16,
    (4, 16): types.bf16,
    (10, 8): types.f8e4m3,
    (12, 8): types.f8e5m2,
    (0, 64): types.i64,
    (0, 32): types.i32,
    (0, 16): types.i16,
    (0, 8): types.i8,
    (1, 64): types.u64,
    (1, 32): types.u32,
    (1, 16): types.u16,
    (1, 8): types.u8,
    (6, 8): types.bool_,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_api = ctypes.pythonapi
_get_pointer = _api.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True, slots=True)
class View:
    """An array somewhere in memory. `keep` owns it: the address is good while `keep` lives."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None when C-contiguous
    dtype: DType
    device: tuple[int, int]
    keep: Any

    def numpy(self) -> np.ndarray:
        """The same memory as a NumPy array. Only for the CPU's memory."""
        assert self.device[0] == 1, f"memory of device {self.device} is not the host's"
        itemsize = self.dtype.nbytes
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype.numpy)
        steps = self.strides or _dense_strides(self.shape)
        # the span of memory, in elements: a negative stride reaches to before the first one
        reaches = [(n - 1) * s for n, s in zip(self.shape, steps)]
        before = -sum(r for r in reaches if r < 0)
        count = before + sum(r for r in reaches if r > 0) + 1
        start = self.address - before * itemsize
        raw = (ctypes.c_char * (count * itemsize)).from_address(start)
        raw._owner = self.keep  # type: ignore[attr-defined]  # NumPy keeps `raw`, `raw` keeps this
        strides = tuple(s * itemsize for s in steps)
        buffer: Any = raw
        return np.ndarray(self.shape, self.dtype.numpy, buffer, before * itemsize, strides)


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def view_of(array: Any, stream: int | None = None) -> View:
    """Look at `array` without copying: NumPy arrays, anything with `__dlpack__`, or what is a View.

    Raises ShapeError when it is none of them, or has a dtype we lack.
    """
    if isinstance(array, View):
        return array
    if isinstance(array, np.ndarray):
        return _view_of_numpy(array)
    producer = getattr(array, "__dlpack__", None)
    if producer is None:
        raise ShapeError(
            f"a {type(array).__name__} is not an array",
            facts="it has no __dlpack__ and is no numpy.ndarray",
            fix="pass a NumPy array, a torch tensor, or another array with DLPack",
        )
    if getattr(array, "is_neg", bool)():  # torch's view of negated memory, which DLPack cannot say
        array = array.resolve_neg()
        producer = array.__dlpack__
    try:
        needs_stream = stream is not None and array.__dlpack_device__()[0] != 1
        capsule = producer(stream=stream) if needs_stream else producer()
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ShapeError(
            f"a {type(array).__name__} does not hand out its memory",
            facts=f"its __dlpack__ says: {error}",
            fix="a torch tensor that requires grad must be detached first: x.detach(); a sparse one"
            " made dense: x.to_dense()",
        ) from error
    return _read(capsule, array)


def _view_of_numpy(array: np.ndarray) -> View:
    dtype = types.dtype_of(array.dtype)
    if dtype is None or not array.dtype.isnative:
        raise _no_dtype(f"NumPy's {array.dtype}")
    strides = None
    if not array.flags.c_contiguous:
        strides = tuple(s // array.itemsize for s in array.strides)
        if any(s % array.itemsize for s in array.strides):  # a field of a structured array
            array, strides = np.ascontiguousarray(array), None
    return View(array.ctypes.data, array.shape, strides, dtype, CPU, array)


def _read(capsule: Any, owner: Any) -> View:
    if not _is_valid(capsule, b"dltensor"):
        raise ShapeError(
            f"{type(owner).__name__}.__dlpack__ returned no DLPack capsule",
            facts=f"it returned {capsule!r}",
        )
    tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    dtype = _DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        raise _no_dtype(f"{_KINDS.get(code, f'DLPack code {code}')} of {bits} bits")
    rank = tensor.ndim
    shape = tuple(tensor.shape[:rank]) if rank else ()
    strides = tuple(tensor.strides[:rank]) if rank and tensor.strides else None
    if strides is not None and is_contiguous(shape, strides):
        strides = None
    device = (tensor.device_type, tensor.device_id)
    if device[0] == 3:  # pinned host memory
        device = CPU
    address = (tensor.data or 0) + tensor.byte_offset
    # an unused capsule frees its tensor when it dies, so holding it is holding the memory
    return View(address, shape, strides, dtype, device, (capsule, owner))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether `strides` (in elements) are those of a dense row-major array."""
    differ = (n != 1 and s != d for n, s, d in zip(shape, strides, _dense_strides(shape)))
    return 0 in shape or not any(differ)


def _no_dtype(what: str) -> ShapeError:
    return ShapeError(
        "the array's dtype has no counterpart here",
        facts=f"it is {what}; known are {', '.join(types.DTYPES)}",
        fix="convert the array to one of those",
    )


# ---- handing out ---------------------------------------------------------------------------


def numpy_capsule(array: np.ndarray, dtype: DType) -> Any:
    """A capsule for host memory, of any of our dtypes.

    NumPy makes it and owns the release; a dtype that NumPy cannot export is exported as integers
    of its width and then renamed.
    """
    code, bits = _CODES[dtype]
    if code in (4, 10, 12):
        array = array.view(np.uint16 if bits == 16 else np.uint8)
    capsule = array.__dlpack__()
    _Tensor.from_address(_get_pointer(capsule, b"dltensor")).dtype.code = code
    return capsule


class _Carrier(np.ndarray):
    """An array without elements of its own, exported in place of memory that is not NumPy's."""

    keep: Any


def capsule_of(view: View) -> Any:
    """A capsule for any memory. `view.keep` lives until the consumer releases it.

    NumPy makes the capsule and describes itself in it; then the description is replaced. So the
    release is NumPy's C function, which is safe to call while the interpreter shuts down: a
    callback of ctypes is not.
    """
    code, bits = _CODES[view.dtype]
    element = np.zeros(1, f"u{bits // 8}")
    no_strides = (0,) * len(view.shape)
    carrier = np.ndarray.__new__(
        _Carrier, view.shape, element.dtype, buffer=element, strides=no_strides
    )
    carrier.keep = view.keep
    capsule = carrier.__dlpack__()
    tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    tensor.data, tensor.byte_offset = view.address, 0
    tensor.device_type, tensor.device_id = view.device
    tensor.dtype.code, tensor.dtype.bits = code, bits
    if tensor.strides:  # NULL when at most one element makes strides meaningless
        for axis, stride in enumerate(view.strides or _dense_strides(view.shape)):
            tensor.strides[axis] = stride
    return capsule
