"""What this machine has: processor, memory, compilers, libraries, GPU. Only reads."""

import ctypes
import gc
import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..ir import switches
from ..ir.errors import DeviceError

# Instruction sets that change what the C++ compiler makes of our kernels, narrow to wide.
ISA_FLAGS = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16")
ISA_FLAGS += ("amx_bf16", "asimd", "asimdhp", "bf16", "sve", "i8mm")

NOT_INITIALIZED = 3  # CUDA's word for a context that a fork has cut off

LIBRARIES = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "torch", "transformers")
LIBRARIES += ("gguf", "accelerate", "triton", "cuda-core", "cuda-bindings", "onnx")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that was found."""

    path: str
    version: str


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


def cpu_name() -> str:
    """The processor's own name, else its architecture."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def isa() -> tuple[str, ...]:
    """The instruction sets of ISA_FLAGS that every core has."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            have = set(value.split())
            return tuple(flag for flag in ISA_FLAGS if flag in have)
    return ()


def memory() -> tuple[int, int]:
    """(total, available) bytes; a container's limit counts where it is lower."""
    from ..runtime import cgroup
    from ..runtime.cpu import available_bytes  # loads NumPy, which help texts do without

    total = 0
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limit = cgroup.memory_limit()
    return total if limit is None else min(total, limit), available_bytes()


def compilers() -> tuple[Compiler, ...]:
    """C++ compilers in the order they are tried; one that TILEWRIGHT_CXX names is the only one."""
    from ..codegen.cpp.compile import split_command  # loads NumPy, which help texts do without

    named = switches.get("cxx")
    found: dict[str, Compiler] = {}
    for command in [split_command(named)] if named else [("g++",), ("clang++",), ("c++",)]:
        path = shutil.which(command[0])
        real = os.path.realpath(path or "")
        if path and real not in found:  # c++ is often another name of g++
            asked = [path, *command[1:], "--version"]
            answer = subprocess.run(asked, capture_output=True, text=True)
            first = (answer.stdout or answer.stderr).splitlines()
            found[real] = Compiler(
                shlex.join([path, *command[1:]]), first[0] if first else "does not tell its version"
            )
    return tuple(found.values())


def library_versions() -> dict[str, str | None]:
    """Version of each library that some part of us uses; None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


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
    from ..ir.target import target_of

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


def folder_size(folder: Path) -> tuple[int, int]:
    """(files, bytes) below a folder; (0, 0) where there is none."""
    files = [file for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
    return len(files), sum(file.stat().st_size for file in files)


def python_version() -> str:
    """Python's version and kind: 3.11.7 (CPython)."""
    return f"{platform.python_version()} ({platform.python_implementation()})"


def operating_system() -> str:
    """Name and version of the system, with the C library that binaries depend on."""
    names = dict(
        re.findall(r'^(\w+)="?([^"\n]*)"?$', "\n".join(_lines("/etc/os-release")), re.MULTILINE)
    )
    libc = " ".join(platform.libc_ver()).strip()
    return f"{names.get('PRETTY_NAME', platform.system())}, kernel {platform.release()}, {libc}"


def _lines(path: str) -> list[str]:
    """Lines of a file that the kernel may or may not offer."""
    file = Path(path)
    return file.read_text().splitlines() if file.is_file() else []


def release_memory() -> None:
    """Give freed memory back to the system; glibc otherwise keeps what tracing and packing used."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
