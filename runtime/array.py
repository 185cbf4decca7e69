"""Array: a result in the memory of a device, for NumPy and DLPack consumers to take."""

from typing import Any

import numpy as np

from ..ir.types import DType
from .device import Device, Memory
from .dlpack import CPU, View, capsule_of, numpy_capsule


class Array:
    """A dense array of any device.

    `torch.from_dlpack(a)` takes it without a copy, `a.numpy()` and `np.asarray(a)` give a NumPy
    array (without a copy on the CPU).
    """

    # either `_host`, or `_device` and its `_memory`; a state or weight on the CPU has all three
    __slots__ = ("_device", "_host", "_memory", "dtype", "shape")
    _device: Any
    _memory: Any

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        host: np.ndarray | None = None,
        device: Device | None = None,
        memory: Memory | None = None,
    ):
        self.shape, self.dtype = shape, dtype
        self._host, self._device, self._memory = host, device, memory

    @staticmethod
    def over(memory: Memory, shape: tuple[int, ...], dtype: DType, device: Device) -> "Array":
        """The array that lies at the start of `memory`."""
        host = None
        if device.dlpack_device == CPU:
            host = View(memory.address, shape, None, dtype, CPU, memory).numpy()
        return Array(shape, dtype, host, device, memory)

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return self._host.ctypes.data if self._host is not None else self._memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.nbytes

    def numpy(self) -> np.ndarray:
        """The elements as a NumPy array: this memory on the CPU, a copy from elsewhere."""
        if self._host is not None:
            return self._host
        array = np.empty(self.shape, self.dtype.numpy)
        self._device.download(self._memory, array)
        return array

    def item(self) -> Any:
        """The only element, as a number of Python's."""
        return self.numpy().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False and self._host is None:
            raise ValueError("an array of another device cannot be seen without a copy")
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy and self._host is not None else array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU if self._host is not None else self._device.dlpack_device

    def capsule(self) -> Any:
        """A DLPack capsule for memory of a device, where nobody has to wait for its content."""
        device = self._device.dlpack_device
        return capsule_of(View(self.address, self.shape, None, self.dtype, device, self._memory))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # `stream` is not needed, as all work is waited for; `max_version` may be ignored
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"this array is on {self.__dlpack_device__()}, not on {dl_device}")
        if self._host is not None:
            return numpy_capsule(self._host.copy() if copy else self._host, self.dtype)
        if copy:
            raise BufferError("a copy on the device is the consumer's to make")
        self._device.synchronize()
        return self.capsule()

    def __repr__(self) -> str:
        where = "cpu" if self._device is None else self._device.name
        return f"Array({self.dtype}[{', '.join(map(str, self.shape))}] on {where})"
