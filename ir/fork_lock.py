"""What survives a fork: locks that a child may take, and objects that learn they are in one."""

import os
import threading
import weakref
from typing import Any, Protocol


class Forked(Protocol):
    """Something that has to do when it finds itself in a forked process."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there. Must not raise."""
        ...


_told: weakref.WeakSet[Any] = weakref.WeakSet()


def tell_after_fork(one: Forked) -> None:
    """Call `one.after_fork()` in every process that is forked from this one while it lives."""
    _told.add(one)


def _tell() -> None:
    for one in list(_told):
        one.after_fork()


os.register_at_fork(after_in_child=_tell)


class ForkLock:
    """`with lock: ...`, as with `threading.RLock`.

    A thread that holds a lock while another one forks does not exist in the child, which would
    wait for it forever; so the child begins with a lock of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        tell_after_fork(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def try_enter(self) -> bool:
        """Enter where that needs no waiting. -> whether it did."""
        return self._lock.acquire(blocking=False)

    def after_fork(self) -> None:
        """A new lock, unless the one there is free or held by the thread that forked."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()
