"""`tilewright doctor`: what hardware and tools were found, and what that allows."""

import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from .. import __version__
from ..api import cache
from ..ir import switches
from . import options
from .console import human_bytes, labelled, print_json

if TYPE_CHECKING:
    from ..api.machine import Gpus

# Instruction sets that change what the C++ compiler makes of our kernels, narrow to wide.
ISA_FLAGS = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16")
ISA_FLAGS += ("amx_bf16", "asimd", "asimdhp", "bf16", "sve", "i8mm")

LIBRARIES = ("numpy", "ml_dtypes", "safetensors", "tokenizers", "torch", "transformers")
LIBRARIES += ("gguf", "accelerate", "triton", "cuda-core", "cuda-bindings")
GPU_LIBRARIES = ("triton", "cuda-core", "cuda-bindings")


def doctor(as_json: options.AsJson = False) -> None:
    """Show what hardware and tools were found. Exits with 1 where nothing can be compiled."""
    facts = collect()
    if as_json:
        print_json(facts)
    else:
        print(render(facts))
    if not facts["targets"]:
        raise typer.Exit(1)


def collect() -> dict:
    """All facts as plain data, the shape of `--json`."""
    from ..api.machine import cpu_name, nvidia_gpus  # these load NumPy, which help texts do without
    from ..runtime.cpu import available_bytes, instruction_sets, usable_cores

    isa = instruction_sets()
    gpus = nvidia_gpus()
    found = compilers()
    libraries = {name: cache.version_of(name) for name in LIBRARIES}
    folder = cache.cache_dir()
    files, size = cache.files_and_bytes(folder)
    targets, problems = verdict(found, gpus, libraries)
    return {
        "tilewright": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": operating_system(),
        "cpu": {
            "name": cpu_name(),
            "isa": [flag for flag in ISA_FLAGS if flag in isa],
            "cores": usable_cores(),
        },
        "memory": {"total_bytes": total_bytes(), "available_bytes": available_bytes()},
        "compilers": found,
        "gpus": [asdict(gpu) for gpu in gpus.found],
        "gpu_driver_cuda": gpus.driver_cuda,
        "no_gpu_because": gpus.why_none,
        "libraries": libraries,
        "cache": {"folder": str(folder), "files": files, "bytes": size},
        "targets": targets,
        "problems": problems,
    }


def verdict(
    compilers: list[dict], gpus: "Gpus", libraries: dict[str, str | None]
) -> tuple[list[str], list[str]]:
    """(targets that programs can be compiled for and run on here, what is missing for the rest)."""
    targets, problems = [], []
    if compilers:
        targets.append("cpu")
    else:
        problems.append(
            "no C++ compiler: install g++ (or set TILEWRIGHT_CXX) to compile for this CPU"
        )
    for gpu in gpus.found:
        missing = [name for name in GPU_LIBRARIES if libraries[name] is None]
        if missing:
            problems.append(f"{gpu.name}: install tilewright[gpu]; missing: {', '.join(missing)}")
        else:
            targets.append(f"cuda:{gpu.arch}")
    return targets, problems


def render(facts: dict) -> str:
    """The facts as lines of `label  value`."""
    cpu = facts["cpu"]
    total, available = (human_bytes(facts["memory"][f"{k}_bytes"]) for k in ("total", "available"))
    rows = [
        ("tilewright", facts["tilewright"]),
        ("python", facts["python"]),
        ("system", facts["system"]),
        ("cpu", f"{cpu['name']}, {cpu['cores']} usable cores"),
        ("", " ".join(cpu["isa"])),
        ("memory", f"{available} free of {total}"),
    ]
    rows += [("compiler", f"{item['version']}, {item['path']}") for item in facts["compilers"]]
    rows += [
        ("gpu", f"{gpu['name']}, {gpu['arch']}, {human_bytes(gpu['memory_bytes'])}")
        for gpu in facts["gpus"]
    ]
    if facts["gpu_driver_cuda"]:
        rows.append(("gpu driver", f"runs CUDA {facts['gpu_driver_cuda']} and older"))
    if facts["no_gpu_because"]:
        rows.append(("gpu", f"none: {facts['no_gpu_because']}"))
    rows += [(name, version or "not installed") for name, version in facts["libraries"].items()]
    kept = facts["cache"]
    rows.append(("cache", f"{kept['folder']}, {human_bytes(kept['bytes'])}"))
    rows.append(("targets", ", ".join(facts["targets"]) or "none"))
    rows += [("problem", problem) for problem in facts["problems"]]
    return labelled(rows)


# ---- what is read of this machine ------------------------------------------------------------


def total_bytes() -> int:
    """Memory of the machine; a container's limit counts where it is lower."""
    from ..runtime import cgroup

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup.memory_limit()
    return total if limit is None else min(total, limit)


def compilers() -> list[dict[str, str]]:
    """C++ compilers in the order they are tried; one that TILEWRIGHT_CXX names is the only one."""
    from ..codegen.cpp.binary import split_command  # loads NumPy, which help texts do without

    named = switches.get("cxx")
    found: dict[str, dict[str, str]] = {}
    for command in [split_command(named)] if named else [("g++",), ("clang++",), ("c++",)]:
        path = shutil.which(command[0])
        real = os.path.realpath(path or "")
        if path and real not in found:  # c++ is often another name of g++
            whole = [path, *command[1:]]
            answer = subprocess.run([*whole, "--version"], capture_output=True, text=True)
            first = (answer.stdout or answer.stderr).splitlines()
            version = first[0] if first else "does not tell its version"
            found[real] = {"path": shlex.join(whole), "version": version}
    return list(found.values())


def operating_system() -> str:
    """Name and version of the system, with the C library that binaries depend on."""
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = platform.system()
    return f"{name}, kernel {platform.release()}, {' '.join(platform.libc_ver()).strip()}"
