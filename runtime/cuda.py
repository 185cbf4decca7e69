"""NVIDIA GPUs as devices, through cuda-core: memory and copies. runtime/cuda_module.py runs code.

Everything a device is told goes to one stream of its own. Only what cuda-core has no words for
(copies between bare addresses, function attributes, unloading) is asked of the driver.
CUDA does not survive a fork: in a child each use is a DeviceError, and nothing is given back there.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..ir.errors import DeviceError
from ..ir.fork_lock import tell_after_fork
from ..ir.program import Program
from ..ir.target import target_of
from .cuda_module import CudaModule
from .device import Done, check_room, no_memory
from .spare_memory import SpareMemory

POOLED_BYTES = 32 << 20  # smaller requests come from a pool: outputs and inputs of every call
KEPT_BYTES = 512 << 20  # of freed pool memory that is kept for the next request
GRAIN = 512  # bytes; sizes of brief memory are multiples
SPARE_SHARE = 16  # this part of a device's memory may be kept for the next run


def load_cuda() -> tuple[Any, Any]:
    """(cuda.core, cuda.bindings.driver). DeviceError when they are not installed."""
    try:
        import cuda.core as core
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            "the NVIDIA packages that load and launch kernels are not installed",
            facts=str(error),
            fix='install them: pip install "tilewright[gpu]"',
        ) from error
    return core, driver


def count_devices() -> int:
    """How many NVIDIA GPUs there are; 0 without a driver or without cuda-core."""
    try:
        _, driver = load_cuda()
    except DeviceError:
        return 0
    if int(driver.cuInit(0)[0]) != 0:
        return 0
    error, count = driver.cuDeviceGetCount()
    return count if int(error) == 0 else 0


class CudaMemory:
    """Memory of one device; given back when the last reference goes."""

    def __init__(self, address: int, nbytes: int, free: Callable[[int], None]):
        self.address, self.nbytes = address, nbytes
        self._finalizer = weakref.finalize(self, free, address)
        self._finalizer.atexit = False  # the driver takes everything back by itself


class Reached:
    """Called, it waits until the device has come to where it was made; see Done."""

    def __init__(self, device: "CudaDevice"):
        self._device, self._event = device, device.begin_event()
        self._finalizer = weakref.finalize(self, device.end_event, self._event)
        self._finalizer.atexit = False

    def __call__(self) -> None:
        self._device.enter()
        self._device.check(self._device.driver.cuEventSynchronize(self._event))


class CudaDevice:
    """One NVIDIA GPU. Raises DeviceError when there is none, or no package to drive it."""

    kind = "cuda"

    def __init__(self, index: int = 0):
        self.core, self.driver = load_cuda()
        self._is_forked = False
        found = count_devices()
        if index >= found:
            raise DeviceError(
                f"no NVIDIA GPU number {index}",
                facts=f"{found} found",
                fix="use target cpu, or run where `nvidia-smi` lists a GPU",
            )
        self.index, self.name = index, f"cuda:{index}"
        self.dlpack_device = (2, index)
        self._thread = threading.local()
        self._device = self.core.Device(index)
        self.enter()
        arch = "sm_{}{}".format(*self._device.compute_capability)
        runs = target_of(arch)  # whose code: not every architecture has a target of its own
        self.target = arch if runs is None else runs.name
        self.stream = self._device.create_stream()
        self._raw_stream = self.stream.handle
        self.dlpack_stream = int(self._raw_stream)
        pool = self.check(self.driver.cuDeviceGetDefaultMemPool(index))
        threshold = self.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.check(
            self.driver.cuMemPoolSetAttribute(pool, threshold, self.driver.cuuint64_t(KEPT_BYTES))
        )
        total = self.check(self.driver.cuMemGetInfo())[1]
        self._mark = self._new_event()  # a wait for it is for what it was recorded after then
        self._spares = SpareMemory(int(total) // SPARE_SHARE, self._free)
        tell_after_fork(self)

    def after_fork(self) -> None:
        """In a forked process: all that was made on this device is the parent's."""
        self._is_forked = True
        self.abandon(self.stream)

    def abandon(self, thing: Any) -> None:
        """Never destroy what cuda-core made: in a forked process that crashes in the driver."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

    def enter(self) -> None:
        """Make the device current in this thread. DeviceError in a process forked since."""
        if self._is_forked:
            raise DeviceError(
                "a forked process cannot use the GPU program of its parent",
                where=self.name,
                facts="CUDA does not survive a fork",
                fix='start it by multiprocessing.get_context("spawn"), and make the model in it',
            )
        if not getattr(self._thread, "is_current", False):
            self._device.set_current()
            self._thread.is_current = True

    def check(self, result: tuple) -> Any:
        """The value of a driver call; DeviceError with the driver's words when it failed."""
        error, *values = result
        if int(error) != 0:
            name, text = (
                f(error)[1] for f in (self.driver.cuGetErrorName, self.driver.cuGetErrorString)
            )
            raise DeviceError(
                f"the CUDA driver reports {_text(name)}", where=self.name, facts=_text(text)
            )
        return values[0] if len(values) == 1 else tuple(values)

    # ---- memory ----

    def allocate(
        self, nbytes: int, what: str, *, zero: bool = False, brief: bool = False
    ) -> CudaMemory:
        """See Device."""
        self.enter()
        size = max(nbytes, 1)
        if brief:
            size = -(-size // GRAIN) * GRAIN
            free: Callable[[int], None] = partial(self._spare, size)
            spare = self._spares.take(size)
            if spare is not None:
                # whoever had it may still read it where torch computes, unless told otherwise
                self.wait_for(self.driver.CU_STREAM_LEGACY)
            address = spare or self._taken(size, nbytes, what, pooled=False)
        else:
            pooled = size < POOLED_BYTES
            free = self._free_pooled if pooled else self._free
            address = self._taken(size, nbytes, what, pooled)
        memory = CudaMemory(address, nbytes, free)
        if zero:
            self.zero(memory)
        return memory

    def _taken(self, size: int, nbytes: int, what: str, pooled: bool) -> int:
        """The address of new memory."""
        driver = self.driver
        for may_spare in (True, False):
            if pooled:
                error, address = driver.cuMemAllocAsync(size, self._raw_stream)
            else:
                error, address = driver.cuMemAlloc(size)
            if int(error) != int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
                return int(self.check((error, address)))
            if may_spare:
                self._spares.clear()
        raise no_memory(nbytes, what, self.name, self.free_bytes())

    def wait_for(self, stream: int) -> None:
        """Do what comes next after what another stream was told so far."""
        self.enter()
        self.check(self.driver.cuEventRecord(self._mark, stream))
        self.check(self.driver.cuStreamWaitEvent(self._raw_stream, self._mark, 0))

    def hand_over(self, stream: int) -> None:
        """Let another stream do what it is told next after all told so far."""
        self.enter()
        self.check(self.driver.cuEventRecord(self._mark, self._raw_stream))
        self.check(self.driver.cuStreamWaitEvent(stream, self._mark, 0))

    def _spare(self, size: int, address: int) -> None:
        if not self._is_forked:
            self._spares.give(size, address)

    def _free(self, address: int) -> None:
        if not self._is_forked:
            self.enter()
            self.driver.cuMemFree(address)  # waits for the device: nothing can still be using it

    def _free_pooled(self, address: int) -> None:
        if not self._is_forked:
            self.enter()
            self.driver.cuMemFreeAsync(address, self._raw_stream)

    def free_bytes(self) -> int:
        """How much `allocate` can give now."""
        self.enter()
        self._spares.clear()
        return int(self.check(self.driver.cuMemGetInfo())[0])

    def zero(self, memory: CudaMemory) -> None:
        """Fill with zero bytes."""
        if memory.nbytes:
            self.enter()
            self.check(
                self.driver.cuMemsetD8Async(memory.address, 0, memory.nbytes, self._raw_stream)
            )

    def upload(self, memory: CudaMemory, array: np.ndarray) -> None:
        """Copy `array` into `memory`; it may be changed once this returns."""
        check_room(memory, array)
        if not array.nbytes:
            return
        self.enter()
        source = array.ctypes.data
        self.check(
            self.driver.cuMemcpyHtoDAsync(memory.address, source, array.nbytes, self._raw_stream)
        )
        if self._is_pinned(source):  # then the copy is only begun; pageable memory is staged first
            self.synchronize()

    def _is_pinned(self, address: int) -> bool:
        attribute = self.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        return int(self.driver.cuPointerGetAttribute(attribute, address)[0]) == 0

    def download(self, memory: CudaMemory, array: np.ndarray) -> None:
        """Copy from `memory` into `array`, after waiting for the work before."""
        check_room(memory, array)
        if not array.nbytes:
            return
        self.enter()
        self.check(
            self.driver.cuMemcpyDtoHAsync(
                array.ctypes.data, memory.address, array.nbytes, self._raw_stream
            )
        )
        self.synchronize()

    def host_memory(self, nbytes: int) -> np.ndarray:
        """Zeros in page-locked memory, which the GPU reads and writes by itself."""
        self.enter()
        address = int(self.check(self.driver.cuMemHostAlloc(max(nbytes, 1), 0)))
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        finalizer = weakref.finalize(memory, self._free_host, address)
        finalizer.atexit = False
        array = np.frombuffer(memory, np.uint8)
        array[:] = 0
        return array

    def _free_host(self, address: int) -> None:
        if not self._is_forked:
            self.synchronize()  # a copy may be on its way
            self.driver.cuMemFreeHost(address)

    def send(self, memory: CudaMemory, array: np.ndarray) -> Done:
        """Begin to copy `array`, of `host_memory`, into `memory`."""
        check_room(memory, array)
        self.enter()
        self.check(
            self.driver.cuMemcpyHtoDAsync(
                memory.address, array.ctypes.data, array.nbytes, self._raw_stream
            )
        )
        return Reached(self)

    def fetch(self, memory: CudaMemory, array: np.ndarray) -> Done:
        """Begin to copy from `memory` into `array`, of `host_memory`."""
        check_room(memory, array)
        self.enter()
        self.check(
            self.driver.cuMemcpyDtoHAsync(
                array.ctypes.data, memory.address, array.nbytes, self._raw_stream
            )
        )
        return Reached(self)

    def begin_event(self) -> Any:
        """An event that happens when all that was asked for so far is done."""
        event = self._new_event()
        self.check(self.driver.cuEventRecord(event, self._raw_stream))
        return event

    def _new_event(self) -> Any:
        flags = self.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self.check(self.driver.cuEventCreate(flags))

    def end_event(self, event: Any) -> None:
        """Give an event back."""
        if not self._is_forked:
            self.enter()
            self.driver.cuEventDestroy(event)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between two addresses of the device."""
        if nbytes and target != source:
            self.enter()
            self.check(self.driver.cuMemcpyDtoDAsync(target, source, nbytes, self._raw_stream))

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""
        self.enter()
        self.check(self.driver.cuStreamSynchronize(self._raw_stream))

    # ---- code ----

    def load(self, program: Program) -> CudaModule:
        """Load the program's binaries."""
        if program.target != self.target:
            raise DeviceError(
                f"{program.name} was compiled for {program.target}, {self.name} is {self.target}",
                fix=f"compile it for the target {self.target}",
            )
        self.enter()
        return CudaModule(program, self)

    def launch_config(self, grid: tuple[int, ...], threads: int, shared: int, pdl: bool) -> Any:
        """How a kernel is launched; with `pdl` it may begin while the one before it ends."""
        driver = self.driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, self._raw_stream
        if pdl:
            attribute = driver.CUlaunchAttribute()
            attribute.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def unload(self, library: Any) -> None:
        """Give back a loaded binary, once what was launched is done."""
        if not self._is_forked:
            self.enter()
            self.driver.cuStreamSynchronize(self._raw_stream)
            self.driver.cuLibraryUnload(library)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
