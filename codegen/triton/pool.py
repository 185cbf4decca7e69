"""Compiles many kernels at once, in as many processes as there are cores."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from ...ir.errors import BuildError
from ...ir.target import TARGETS, Target
from ..scratch import scratch_folder
from .binary import CompiledKernel, compile_kernel, failed
from .launch import Emitted
from .worker import request_of

WORTH_A_PROCESS = 6  # kernels: fewer compile sooner here than a process starts


def compile_all(
    launches: Sequence[Emitted], target: Target, done: Callable[[int], None] = lambda n: None
) -> list[CompiledKernel]:
    """Compile each launch; `done` hears how many are ready. Raises the first BuildError."""
    workers = min(_cores(), len(launches) // WORTH_A_PROCESS)
    if workers < 2 or TARGETS.get(target.name) != target:  # a worker knows targets by name
        results = []
        for number, emitted in enumerate(launches):
            results.append(compile_kernel(emitted, target))
            done(number + 1)
        return results
    with scratch_folder() as folder:
        return _in_processes(launches, target, folder, done, workers)


def _in_processes(
    launches: Sequence[Emitted],
    target: Target,
    folder: Path,
    done: Callable[[int], None],
    workers: int,
) -> list[CompiledKernel]:
    """Threads, each with one process at a time, take launches in order until none is left."""
    processes = [_start() for _ in range(workers)]
    idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def compiled(number: int) -> CompiledKernel:
        process = idle.get()
        try:
            return _ask(process, folder, target, number, launches[number])
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers)
    try:
        futures = [threads.submit(compiled, number) for number in range(len(launches))]
        for ready, future in enumerate(as_completed(futures), 1):
            future.result()
            done(ready)
        return [future.result() for future in futures]
    finally:  # also when interrupted: whoever waits for a process is answered by its end
        for process in processes:
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


def _ask(
    process: subprocess.Popen[str], folder: Path, target: Target, number: int, emitted: Emitted
) -> CompiledKernel:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request_of(folder / str(number), target.name, emitted) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        process.wait()
        raise BuildError(
            f"the process that compiled {emitted.name} ended",
            facts=f"its exit status is {process.returncode}",
            fix="compile again with more memory, or with fewer cores",
        )
    said = json.loads(line)
    if "error" in said:
        raise failed(emitted, target, said["error"])
    return CompiledKernel(binary=(folder / str(number)).read_bytes(), **said)


def _start() -> subprocess.Popen[str]:
    # the package may be importable only through this process's path
    package = __name__.removesuffix(".codegen.triton.pool")
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"{package}.codegen.triton.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))
