"""A stand-in for cuda-core and the driver, which counts and remembers what it is told."""

import ctypes
from types import SimpleNamespace

import numpy as np


class FakeDriver:
    """Counts memory, remembers copies."""

    CUmemPool_attribute = SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD=4)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE=2)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CU_STREAM_LEGACY = 1
    CUlaunchConfig = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
    CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2)
    cuuint64_t = int
    CUdevice = int

    @staticmethod
    def CUlaunchAttribute():  # noqa: N802 (the driver's names)
        return SimpleNamespace(value=SimpleNamespace())

    def __init__(self, free=1 << 30):
        self.free, self.freed, self.attributes, self.synchronized = free, [], [], 0
        self.next = 1 << 20
        self.calls = []  # in order: those about libraries and graphs, and waits
        self.launched = []  # (configuration, kernel, arguments), and graphs

    def __getattr__(self, name):
        return lambda *args: (0,)

    def cuInit(self, flags):  # noqa: N802 (the driver's names)
        return (0,)

    def cuDeviceGetCount(self):  # noqa: N802
        return 0, 1

    def cuDeviceGetDefaultMemPool(self, index):  # noqa: N802
        return 0, "pool"

    def cuMemGetInfo(self):  # noqa: N802
        return 0, self.free, 1 << 34

    def cuMemAlloc(self, size):  # noqa: N802
        if size > self.free:
            return 2, None
        self.next += 1 << 20
        return 0, self.next

    def cuMemAllocAsync(self, size, stream):  # noqa: N802
        return self.cuMemAlloc(size)

    def cuMemFreeAsync(self, address, stream):  # noqa: N802
        self.freed.append(address)
        return (0,)

    def cuMemHostAlloc(self, size, flags):  # noqa: N802
        self.host = np.full(size, 7, np.uint8)
        return 0, self.host.ctypes.data

    def cuMemFreeHost(self, address):  # noqa: N802
        self.calls.append("free host memory")
        return (0,)

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):  # noqa: N802
        self.calls.append(f"send {nbytes}")
        return (0,)

    def cuMemcpyDtoHAsync(self, target, source, nbytes, stream):  # noqa: N802
        self.calls.append(f"fetch {nbytes}")
        return (0,)

    def cuEventCreate(self, flags):  # noqa: N802
        self.calls.append("event")
        return 0, len(self.calls)

    def cuEventSynchronize(self, event):  # noqa: N802
        self.calls.append(f"reach {event}")
        return (0,)

    def cuEventDestroy(self, event):  # noqa: N802
        self.calls.append(f"end {event}")
        return (0,)

    def cuKernelSetAttribute(self, attribute, value, kernel, device):  # noqa: N802
        self.attributes.append((attribute, value))
        return (0,)

    def cuPointerGetAttribute(self, attribute, address):  # noqa: N802
        return (1,)  # pageable

    def cuStreamSynchronize(self, stream):  # noqa: N802
        self.synchronized += 1
        self.calls.append("wait")
        return (0,)

    def cuLaunchKernelEx(self, config, kernel, arguments, extra):  # noqa: N802
        pointers = (ctypes.c_void_p * self.num_arguments).from_address(arguments)
        self.launched.append((config, kernel, [bytes(_eight(pointer)) for pointer in pointers]))
        return (0,)

    num_arguments = 6

    def cuLibraryLoadData(self, code, *options):  # noqa: N802
        self.calls.append("load")
        return 0, "library"

    def cuLibraryGetKernel(self, library, name):  # noqa: N802
        return 0, name.decode()

    def cuLibraryUnload(self, library):  # noqa: N802
        self.calls.append("unload")
        return (0,)

    def cuGetErrorName(self, error):  # noqa: N802
        return 0, b"CUDA_ERROR_UNKNOWN"

    def cuGetErrorString(self, error):  # noqa: N802
        return 0, b"unknown error"


def _eight(address):
    return (ctypes.c_uint8 * 8).from_address(address)


class FakeGraph:
    """Records its launches, and its end."""

    def __init__(self, driver):
        self.driver = driver

    def upload(self, stream):
        pass

    def launch(self, stream):
        self.driver.launched.append("graph")

    def __del__(self):
        self.driver.calls.append("destroy")


class FakeCore:
    """A device, its stream, and graphs of that."""

    def __init__(self, driver):
        self.driver, self.capability = driver, (9, 0)

    def Device(self, index):  # noqa: N802 (cuda-core's names)
        stream = SimpleNamespace(handle=77, create_graph_builder=self.graph_builder)
        return SimpleNamespace(
            set_current=lambda: None,
            compute_capability=self.capability,
            create_stream=lambda: stream,
        )

    def graph_builder(self):
        graph = FakeGraph(self.driver)
        builder = SimpleNamespace(begin_building=lambda: None)
        builder.end_building = lambda: SimpleNamespace(complete=lambda: graph)
        return builder
