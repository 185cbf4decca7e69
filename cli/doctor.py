"""`tilewright doctor`: what hardware and tools were found, and what that allows."""

from typing import Annotated

import typer

from .. import __version__
from ..api import machine
from ..api.cache import cache_dir
from . import system
from .console import human_bytes, print_json

GPU_LIBRARIES = ("triton", "cuda-core", "cuda-bindings")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
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
    from ..runtime.cpu import usable_cores  # loads NumPy, which help texts do without

    total, available = system.memory()
    gpus = machine.nvidia_gpus()
    compilers = [{"path": item.path, "version": item.version} for item in system.compilers()]
    libraries = system.library_versions()
    facts = {
        "tilewright": __version__,
        "python": system.python_version(),
        "system": system.operating_system(),
        "cpu": {
            "name": system.cpu_name(),
            "isa": list(system.isa()),
            "cores": usable_cores(),
        },
        "memory": {"total_bytes": total, "available_bytes": available},
        "compilers": compilers,
        "gpus": [
            {"name": gpu.name, "arch": gpu.arch, "memory_bytes": gpu.memory_bytes}
            for gpu in gpus.found
        ],
        "gpu_driver_cuda": gpus.driver_cuda,
        "no_gpu_because": gpus.why_none,
        "libraries": libraries,
    }
    files, size = system.folder_size(cache_dir())
    facts["cache"] = {"folder": str(cache_dir()), "files": files, "bytes": size}
    targets, problems = verdict(compilers, gpus, libraries)
    return {**facts, "targets": targets, "problems": problems}


def verdict(
    compilers: list[dict], gpus: machine.Gpus, libraries: dict[str, str | None]
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
    cache = facts["cache"]
    rows.append(("cache", f"{cache['folder']}, {human_bytes(cache['bytes'])}"))
    rows.append(("targets", ", ".join(facts["targets"]) or "none"))
    rows += [("problem", problem) for problem in facts["problems"]]
    width = max(len(label) for label, _ in rows) + 2
    return "\n".join(f"{label:<{width}}{value}".rstrip() for label, value in rows)
