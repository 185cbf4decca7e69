"""Work that makes many objects and leaves few cycles among them, done without looking for any."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Python's garbage collector off, and on again where it was: all of the process's threads.

    It walks through all objects again and again while libraries are imported and a model is
    traced, which is an eighth of that time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
