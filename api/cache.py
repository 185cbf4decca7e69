"""The cache of compiled models: one artifact a key, the key being all that decides its content."""

import hashlib
import itertools
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir import switches
from ..ir.errors import ArtifactError, OptionError

if TYPE_CHECKING:
    from ..runtime.artifact import Artifact

_LIBRARIES = ("torch", "transformers", "triton", "gguf", "numpy")
ARTIFACTS = "artifacts"  # the folder of them, in the cache's
MAX_BYTES = 20 << 30  # of all artifacts together; those used longest ago go first
UNFINISHED = "."  # begins the names of entries that are being written
_OTHERS_WRITE = 0o022  # the bits of a mode that let a group or everybody write


def cache_dir() -> Path:
    """Where artifacts are kept: the switch `cache`, else the user's cache folder."""
    chosen = switches.get("cache")
    if chosen is not None:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright"


def key_of(facts: Mapping[str, Any]) -> str:
    """The key for `facts`, which are plain data."""
    text = json.dumps(
        {**facts, "code": code_fingerprint(), "libraries": libraries()}, sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def path_of(key: str) -> Path:
    """Where the artifact of `key` is or would be."""
    return cache_dir() / ARTIFACTS / key


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Hash of our sources that decide what is built: an edited compiler never meets old output."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("ir", "frontend", "passes", "codegen", "autotune", "api"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".h", ".cpp"):
                digest.update(file.relative_to(root).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def libraries() -> dict[str, str | None]:
    """Versions of the libraries that decide what is built, read without importing them."""
    return {name: version_of(name) for name in _LIBRARIES}


def version_of(name: str) -> str | None:
    """Version of an installed library, read without importing it; None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_private(path: Path) -> None:
    """OptionError if another user may write the cache's folder or what lies at `path` in it.

    A program in the cache is code that runs without a question, so it is ours or nobody's: the
    folder, the entry and every file of it belong to us or to root, and nobody else may write them.
    """
    folders = [folder for folder in (cache_dir(), path.parent) if has(folder)]
    entry = [path, *path.rglob("*")] if has(path) else []
    for item in (*folders, *entry):
        try:
            stat = item.stat()
        except FileNotFoundError:
            continue  # another process made room
        is_ours = stat.st_uid in (os.geteuid(), 0)
        if is_ours and not stat.st_mode & _OTHERS_WRITE:
            continue
        raise OptionError(
            "other users may write to the cache, and a program in it is code that runs",
            where=str(item),
            facts=f"its mode is {stat.st_mode & 0o7777:o}"
            if is_ours
            else f"it belongs to user {stat.st_uid}, this is user {os.geteuid()}",
            fix=f"delete what you do not trust in it, then: chmod -R go-w {cache_dir()}\n"
            "or set TILEWRIGHT_CACHE to a folder of your own"
            if is_ours
            else "set TILEWRIGHT_CACHE to a folder of your own",
        )


def make_folder() -> None:
    """Make the cache's folder, for its user alone. OSError when it cannot be made."""
    folder = cache_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    for each in (folder, folder / ARTIFACTS):
        each.mkdir(mode=0o700, exist_ok=True)


def has(path: Path) -> bool:
    """Whether an artifact seems to be there; a folder that may not be read has none."""
    try:
        return path.exists()
    except OSError:
        return False


def store(path: Path, artifact: "Artifact", check: Callable[[], None] = lambda: None) -> bool:
    """Keep an artifact. -> whether one is at `path` now; if not, a warning says why.

    Of several processes that build the same one the first wins: an entry that another may have
    mapped is never replaced. `check` is asked once everything is written, weights included: when it
    raises nothing is kept.
    """
    from ..runtime.artifact import save_artifact  # loads NumPy, which help texts do without

    new = path.parent / f"{UNFINISHED}{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        make_folder()
        check_private(path)
        try:
            save_artifact(new, artifact)
            _take_from_others(new)
            check()
            os.rename(new, path)
        except OSError:
            if not has(path):
                raise
        finally:
            remove(new)
    except (OSError, ArtifactError) as error:
        logging.getLogger("tilewright.cache").warning(
            "the compiled model is not kept, and will be compiled again next time: %s",
            error.facts if isinstance(error, ArtifactError) else error,
        )
        return False
    prune()
    return True


def _take_from_others(path: Path) -> None:
    """What the umask let others write, they no longer may."""
    for item in (path, *path.rglob("*")):
        item.chmod(item.stat().st_mode & 0o777 & ~_OTHERS_WRITE)


def touch(path: Path) -> None:
    """Note that an artifact was used, where the folder may be written."""
    try:
        os.utime(path, (time.time(), time.time()))
    except OSError as error:
        logging.getLogger("tilewright.cache").info("%s: %s", path, error.strerror)


def remove(path: Path) -> None:
    """Forget an artifact: one that could not be read is built again."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def prune(max_bytes: int = MAX_BYTES, *, least: int = 1) -> list[Path]:
    """Forget the artifacts used longest ago until the rest fits. -> those that went.

    `least` stay: a new model larger than the limit is kept until the next one comes. What a process
    that was killed left unfinished goes after a day.
    """
    folder = cache_dir() / ARTIFACTS
    found = {path: age_and_size(path) for path in folder.iterdir()} if folder.is_dir() else {}
    for path, (used, _) in list(found.items()):
        if path.name.startswith(UNFINISHED):
            found.pop(path)
            if time.time() - used > 86400:
                remove(path)
    newest = sorted(found, key=lambda path: found[path][0], reverse=True)
    totals = itertools.accumulate(found[path][1] for path in newest)
    gone = [path for path, total in list(zip(newest, totals))[least:] if total > max_bytes]
    for path in gone:
        remove(path)
    return gone


def entries() -> list[Path]:
    """The artifacts that are kept; none where the folder cannot be read."""
    folder = cache_dir() / ARTIFACTS
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if not path.name.startswith(UNFINISHED)]


def age_and_size(path: Path) -> tuple[float, int]:
    """When an entry was last used, and its bytes; none of one that somebody removes meanwhile."""
    try:
        return path.stat().st_mtime, files_and_bytes(path)[1]
    except FileNotFoundError:
        return 0.0, 0


def files_and_bytes(folder: Path) -> tuple[int, int]:
    """How many files lie below a folder, and their bytes; none where it is not there."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return len(sizes), sum(sizes)
