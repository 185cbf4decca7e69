"""What `tilewright doctor` reads of this machine: processor, memory, compilers, libraries."""

import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..api.cache import version_of
from ..ir import switches

# Instruction sets that change what the C++ compiler makes of our kernels, narrow to wide.
ISA_FLAGS = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16")
ISA_FLAGS += ("amx_bf16", "asimd", "asimdhp", "bf16", "sve", "i8mm")

LIBRARIES = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "torch", "transformers")
LIBRARIES += ("gguf", "accelerate", "triton", "cuda-core", "cuda-bindings")


@dataclass(frozen=True)
class CxxCompiler:
    """A C++ compiler that was found."""

    path: str
    version: str


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


def compilers() -> tuple[CxxCompiler, ...]:
    """C++ compilers in the order they are tried; one that TILEWRIGHT_CXX names is the only one."""
    from ..codegen.cpp.binary import split_command  # loads NumPy, which help texts do without

    named = switches.get("cxx")
    found: dict[str, CxxCompiler] = {}
    for command in [split_command(named)] if named else [("g++",), ("clang++",), ("c++",)]:
        path = shutil.which(command[0])
        real = os.path.realpath(path or "")
        if path and real not in found:  # c++ is often another name of g++
            asked = [path, *command[1:], "--version"]
            answer = subprocess.run(asked, capture_output=True, text=True)
            first = (answer.stdout or answer.stderr).splitlines()
            found[real] = CxxCompiler(
                shlex.join([path, *command[1:]]), first[0] if first else "does not tell its version"
            )
    return tuple(found.values())


def library_versions() -> dict[str, str | None]:
    """Version of each library that some part of us uses; None where it is not installed."""
    return {name: version_of(name) for name in LIBRARIES}


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
