"""The cache of compiled models: one artifact a key, the key being all that decides its content."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ..ir import switches

_LIBRARIES = ("torch", "transformers", "triton", "gguf", "numpy")
MAX_BYTES = 20 << 30  # of all artifacts together; those used longest ago go first
_HEAD_BYTES = 1 << 20  # of a file's content that enters its identity, beside size and time


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
    return cache_dir() / "artifacts" / key


def file_identity(path: Path) -> list[Any]:
    """What tells one checkpoint from another: names, sizes, times and the head of each file."""
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    return [[str(path.resolve())]] + [_one_file(f) for f in files]


def _one_file(path: Path) -> list[Any]:
    stat = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
    return [path.name, stat.st_size, stat.st_mtime_ns, head]


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Hash of our sources that decide what is built: an edited compiler never meets old output."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("ir", "frontend", "passes", "codegen"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".h", ".cpp"):
                digest.update(file.relative_to(root).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def libraries() -> dict[str, str | None]:
    """Versions of the libraries that decide what is built, read without importing them."""
    return {name: _version(name) for name in _LIBRARIES}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def touch(path: Path) -> None:
    """Note that an artifact was used."""
    os.utime(path, (time.time(), time.time()))


def remove(path: Path) -> None:
    """Forget an artifact: one that could not be read is built again."""
    shutil.rmtree(path, ignore_errors=True)


def prune(max_bytes: int = MAX_BYTES) -> list[Path]:
    """Forget the artifacts used longest ago until the rest fits. -> those that went.

    The newest always stays: a model larger than the limit is kept until the next one comes.
    """
    folder = cache_dir() / "artifacts"
    kept = sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime) if folder.is_dir() else []
    sizes = [sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) for path in kept]
    total, gone = sum(sizes), []
    for path, size in list(zip(kept, sizes))[:-1]:
        if total <= max_bytes:
            break
        remove(path)
        gone.append(path)
        total -= size
    return gone
