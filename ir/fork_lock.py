"""A reentrant lock that a forked process may take, whoever held it when the process was forked."""

import os
import threading
from typing import Any


class ForkLock:
    """`with lock: ...`, as with `threading.RLock`.

    A thread that holds a lock while another one forks does not exist in the child, which would
    wait for it forever; so the child begins with a lock of its own.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()
