"""What of this machine programs can run on: its GPUs, targets by name, and devices."""

import ctypes
import gc
import platform
from dataclasses import dataclass
from pathlib import Path

from ..ir.errors import DeviceError, OptionError
from ..ir.target import Target, cpu, get_target, target_of

NOT_INITIALIZED = 3  # CUDA's word for a context that a fork has cut off


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as its driver describes it."""

    name: str
    arch: str  # sm_90
    memory_bytes: int


@dataclass(frozen=True)
class Gpus:
    """The GPUs, and the newest CUDA their driver runs; or the reason why there is none."""

    found: tuple[Gpu, ...]
    driver_cuda: str | None
    why_none: str | None


def nvidia_gpus() -> Gpus:
    """Ask the CUDA driver, without any CUDA library of Python's.

    DeviceError in a process that was forked after CUDA was used: it has a GPU, and cannot use it.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Gpus((), None, "no NVIDIA driver: libcuda.so.1 is not installed")
    status = cuda.cuInit(0)
    if status == NOT_INITIALIZED:
        raise DeviceError(
            "this process was forked from one that used the GPU",
            facts="CUDA does not survive a fork",
            fix='start it by multiprocessing.get_context("spawn"), or pass target="cpu"',
        )
    if status != 0:
        return Gpus((), None, f"the NVIDIA driver does not start: cuInit returned {status}")
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value == 0:
        return Gpus((), driver, "the NVIDIA driver sees no device")
    return Gpus(tuple(_gpu(cuda, index) for index in range(count.value)), driver, None)


def gpu_target() -> str | None:
    """The target for the first GPU here; None without a GPU, or with one we have no target for."""
    gpus = nvidia_gpus().found
    target = target_of(gpus[0].arch) if gpus else None
    return None if target is None else target.name


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    numbers = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        number = ctypes.c_int(0)
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    size = ctypes.c_size_t(0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return Gpu(name.value.decode(), f"sm_{numbers[0]}{numbers[1]}", size.value)


def cpu_name() -> str:
    """The processor's own name, else its architecture."""
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def device_name(target: Target) -> str:
    """The name of the device here that runs programs of `target`; the target's where none is."""
    gpus = nvidia_gpus().found if target.is_gpu else ()
    return gpus[0].name if gpus else target.name if target.is_gpu else cpu_name()


def resolve_target(name: str | Target) -> Target:
    """The target called `name`; "auto" is the GPU when there is one, else this CPU."""
    if isinstance(name, Target):
        return name
    if name == "auto":
        name = gpu_target() or "cpu"
    return cpu() if name == "cpu" else get_target(name)


def open_device(target: Target, index: int = 0):
    """The device that runs programs of `target` on this machine. DeviceError when there is none.

    `index` says which, where there are several GPUs.
    """
    if target.kind not in DEVICES:
        raise OptionError(
            f"programs for {target.name} can be built here, not run",
            facts=f"it is a {target.kind} device, and we have {', '.join(DEVICES)}",
            fix="save the artifact and load it where the device is",
        )
    return DEVICES[target.kind](target, index)


def _open_cuda(target: Target, index: int):
    gpus = nvidia_gpus()
    if not gpus.found:
        raise DeviceError(
            f"a program for {target.name} needs an NVIDIA GPU, and there is none here",
            facts=gpus.why_none or "",
            fix="use target='cpu', or build an artifact here with `tilewright compile` and run"
            " it where the GPU is",
        )
    from ..runtime.cuda import CudaDevice

    return CudaDevice(index)


def _open_cpu(target: Target, index: int):
    from ..runtime.cpu import CpuDevice

    return CpuDevice()


DEVICES = {"cpu": _open_cpu, "cuda": _open_cuda}


def release_memory() -> None:
    """Give freed memory back to the system; glibc otherwise keeps what tracing and packing used."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
