"""Compiles many kernels at once, in as many processes as there are cores."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
        return _Pool(launches, target, folder, done).run(workers)


class _Pool:
    """Threads, each with one process, take launches off a list until it is empty."""

    def __init__(
        self, launches: Sequence[Emitted], target: Target, folder: Path, done: Callable[[int], None]
    ):
        self.launches, self.target, self.folder, self.done = launches, target, folder, done
        self.results: list[CompiledKernel | None] = [None] * len(launches)
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.waiting: Iterator[int] = iter(range(len(launches)))
        self.ready = 0

    def run(self, workers: int) -> list[CompiledKernel]:
        processes = [_start() for _ in range(workers)]
        threads = [threading.Thread(target=self.serve, args=(p,), daemon=True) for p in processes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:  # also when interrupted
            for process in processes:
                process.kill()
                process.communicate()
        if self.error is not None:
            raise self.error
        return [r for r in self.results if r is not None]

    def serve(self, process: subprocess.Popen[str]) -> None:
        """Keep one process busy."""
        try:
            while (number := self.take()) is not None:
                self.results[number] = self.ask(process, number)
                with self.lock:
                    self.ready += 1
                    self.done(self.ready)
        except BaseException as error:  # noqa: BLE001 (raised again by the thread that waits)
            self.error = self.error or error

    def take(self) -> int | None:
        with self.lock:
            return None if self.error is not None else next(self.waiting, None)

    def ask(self, process: subprocess.Popen[str], number: int) -> CompiledKernel:
        emitted = self.launches[number]
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            request = request_of(str(self.folder), self.target.name, number, emitted)
            process.stdin.write(request + "\n")
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
            raise failed(emitted, self.target, said["error"])
        return CompiledKernel(binary=(self.folder / str(number)).read_bytes(), **said["facts"])


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
