"""Scratch folders of builds: gone with the build, or, after it was killed, with the next one.

Who builds in a folder holds a lock on a file in it, which the system lets go when the process ends
in whatever way. A folder without such a file was left on purpose: an error names it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..ir.errors import BuildError

PREFIX = "tilewright-"
LOCK = ".building"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for one build. It stays after a BuildError, for its sources to be looked at."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / f"{LOCK}.new", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # under its name only once it is held, or somebody could take the folder for abandoned
        os.rename(folder / f"{LOCK}.new", folder / LOCK)
        yield folder
    except BuildError:
        (folder / LOCK).unlink()
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder)
    finally:
        os.close(lock)


def remove_abandoned() -> None:
    """Remove what builds of ours left behind that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        # another user's, or one that somebody else removes at this moment
        with suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
