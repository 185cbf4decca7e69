"""Objects in processes of their own, which may hang or crash without harm to whoever asks them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any

START_SECONDS = 120.0  # in which a process must have made its object, however busy the machine is
GRACE_SECONDS = 3.0  # between asking a process to end and ending it


@dataclass(frozen=True)
class Failure:
    """Why a call gave nothing. `is_fatal`: the process is gone, with all that its object knew."""

    reason: str
    is_fatal: bool = False


class Remote:
    """The object `make(*args)` in a process of its own, which is replaced when it is gone.

    `make` and the methods' arguments are whatever can be pickled. One call at a time.
    """

    def __init__(self, make: Callable[..., Any], *args: Any):
        self._made_of = (make, args)
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None

    def call(self, method: str, *args: Any, limit: float) -> Any:
        """What the method returns, or a Failure: it raised, crashed, or took too long."""
        if self._process is None:
            failure = self._start()
            if failure is not None:
                return failure
        return self._ask((method, args), limit)

    def _start(self) -> Failure | None:
        ours, theirs = Pipe()
        package = __name__.removesuffix(".autotune.remote")
        # the package may be importable only through this process's path
        path = os.pathsep.join(p for p in sys.path if p)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                f"{package}.autotune.remote_end",
                str(theirs.fileno()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for us: we end it
        )
        theirs.close()
        self._connection = ours
        made = self._ask(self._made_of, START_SECONDS)
        if isinstance(made, Failure):
            self.close()
            return made
        return None

    def _ask(self, request: Any, limit: float) -> Any:
        connection = self._connection
        assert connection is not None
        try:
            connection.send(request)
            if not connection.poll(limit):
                self.close()
                return Failure(f"no end after {limit:g} s", is_fatal=True)
            is_good, value = connection.recv()
        except (EOFError, OSError):
            return Failure(self._ended(), is_fatal=True)
        return value if is_good else Failure(value)

    def _ended(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        code = self._process.returncode
        self.close()
        if code is None:
            return "its process did not answer"
        if code >= 0:
            return f"its process ended with {code}"
        return f"its process was ended by {signal.Signals(-code).name}"

    def close(self) -> None:
        """End the process, first by asking: it may have compilers of its own to end."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
        if process is None:
            return
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RemotePool:
    """Several remote objects that are alike: `each` shares calls out among them."""

    def __init__(self, workers: int, make: Callable[..., Any], *args: Any):
        self._remotes = [Remote(make, *args) for _ in range(max(workers, 1))]

    def each(
        self,
        method: str,
        arguments: Iterable[tuple],
        limit: float,
        done: Callable[[int], None] = lambda count: None,
    ) -> list[Any]:
        """`method` of each tuple of arguments, in their order; `done` hears how many have ended."""
        idle: SimpleQueue[Remote] = SimpleQueue()
        for remote in self._remotes:
            idle.put(remote)

        def ask(args: tuple) -> Any:
            remote = idle.get()
            try:
                return remote.call(method, *args, limit=limit)
            finally:
                idle.put(remote)

        with ThreadPoolExecutor(len(self._remotes)) as threads:
            try:
                futures = [threads.submit(ask, args) for args in arguments]
                for count, future in enumerate(as_completed(futures), 1):
                    future.result()
                    done(count)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.close()  # whoever waits for an answer is told that there is none
                raise
        return [future.result() for future in futures]

    def close(self) -> None:
        """End all processes."""
        close_all(self._remotes)


def close_all(remotes: Sequence[Remote | RemotePool]) -> None:
    """End the processes of several."""
    for remote in remotes:
        remote.close()
