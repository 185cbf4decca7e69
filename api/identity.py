"""What a model's files are: hashes of their content, remembered while the files stay as they are.

A file is known by (device, inode) and taken to be unchanged while size, mtime and ctime are. Who
writes a file can set its mtime back, not its ctime. Times have a grain, so a file that changed a
moment ago could change again without a trace: its hash is not remembered (the rule git has for its
index).
"""

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..ir.errors import CheckpointError
from ..runtime.storage import HASH_CHUNK as CHUNK
from . import cache

STORE = "hashes.json"
MAX_REMEMBERED = 2000  # files; those seen longest ago go first
MAX_THREADS = 16  # each holds a chunk
GRAIN_NS = 3 * 10**9  # the coarsest file times in use, FAT's, are 2 s apart
ATTEMPTS = 3  # at a file that changes while it is read

# What a folder's model depends on. Not: READMEs, pickles and code, which are never opened.
_SUFFIXES = {".safetensors", ".json", ".jinja", ".model", ".spm", ".tiktoken"}
_NAMES = {"vocab.txt", "merges.txt"}
_TEMPLATES = "additional_chat_templates"
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")

Stamp = list[int]  # size, mtime and ctime in nanoseconds

_log = logging.getLogger("tilewright.cache")


def file_identity(path: Path) -> list[list[str]]:
    """[name, hash of the content] of each file that decides the model; the same bytes, the same.

    Where the model lies does not enter. CheckpointError for a file that cannot be read, or that
    changes all the while.
    """
    hashes = Hashes()
    try:
        found = {name: _hash(file, hashes) for name, file in _files(path)}
    except OSError as error:
        raise CheckpointError(
            "the model's files cannot be read",
            where=str(error.filename or path),
            facts=str(error.strerror),
            fix="check who may read them",
        ) from error
    hashes.save()
    return [[name, digest] for name, digest in sorted(found.items())]


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    from ..frontend.onnx.lm_folder import find_onnx

    found = find_onnx(path)
    if found is not None:
        from ..frontend.onnx.model_file import open_model

        yield found.model.name, found.model
        yield from open_model(found.model).external_files().items()
        path = found.folder
    if not path.is_dir():
        part = _PART.fullmatch(path.name)
        others = path.parent.glob("*.gguf") if part else ()
        files = {path, *(p for p in others if _is_part(p, part))}
        yield from ((file.name, file) for file in files if file.is_file())
        return
    for file in path.iterdir():
        if (file.suffix in _SUFFIXES or file.name in _NAMES) and file.is_file():
            yield file.name, file
    if (path / _TEMPLATES).is_dir():
        for file in (path / _TEMPLATES).iterdir():
            if file.suffix == ".jinja" and file.is_file():
                yield f"{_TEMPLATES}/{file.name}", file


def _is_part(path: Path, first: re.Match | None) -> bool:
    part = _PART.fullmatch(path.name)
    return part is not None and first is not None and part.groups() == first.groups()


# ---- hashes --------------------------------------------------------------------------------


def _hash(path: Path, hashes: "Hashes") -> str:
    with path.open("rb") as file:
        for _ in range(ATTEMPTS):
            before, when = os.fstat(file.fileno()), time.time_ns()
            digest = hashes.known(before)
            if digest is not None:
                return digest
            digest = _digest(file.fileno(), before.st_size)
            if digest is not None and _stamp(os.fstat(file.fileno())) == _stamp(before):
                hashes.found(before, digest, when)
                return digest
    raise CheckpointError(
        "a file of the model changes while it is read",
        where=str(path),
        facts=f"its size or time changed in each of {ATTEMPTS} attempts",
        fix="wait until it is written",
    )


def _stamp(stat: os.stat_result) -> Stamp:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _digest(descriptor: int, size: int) -> str | None:
    """What storage.digest gives of the content, or None for a file cut short.

    Read, not mapped: a mapped file that is cut short ends the process.
    """

    def chunk(at: int) -> bytes | None:
        data = os.pread(descriptor, min(CHUNK, size - at), at)
        return hashlib.sha256(data).digest() if len(data) == min(CHUNK, size - at) else None

    starts = range(0, size, CHUNK)
    if len(starts) <= 1:
        parts = [chunk(at) for at in starts]
    else:
        with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
            parts = list(pool.map(chunk, starts))
    whole = hashlib.sha256()
    for part in parts:
        if part is None:
            return None
        whole.update(part)
    return whole.hexdigest()


# ---- the store -----------------------------------------------------------------------------


class Hashes:
    """The hashes that are remembered, and those found since; `save` keeps these too.

    A file must not have changed for `grain_ns` before it was hashed. 0 is for files that nobody
    else writes: those of the cache.
    """

    def __init__(self, grain_ns: int | None = None):
        self._grain = GRAIN_NS if grain_ns is None else grain_ns
        self._known, self._new = _remembered(), {}

    def known(self, stat: os.stat_result) -> str | None:
        """The hash of a file that is as it was when it was found."""
        entry = self._known.get(_key(stat))
        if entry is None or entry[0] != _stamp(stat):
            return None
        self._new[_key(stat)] = entry  # seen now
        return entry[1]

    def found(self, stat: os.stat_result, digest: str, when: int) -> None:
        """The hash that was computed from `when` on; `stat` is from before."""
        if max(_stamp(stat)[1:]) < when - self._grain:
            self._new[_key(stat)] = (_stamp(stat), digest)

    def save(self) -> None:
        """Add what was found to the store."""
        _remember(self._new)


def _key(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}"


def _remembered() -> dict[str, tuple[Stamp, str]]:
    """Stamp and hash of each file that was hashed before, the one seen longest ago first."""
    store = cache.cache_dir() / STORE
    cache.check_private(store)  # whoever may write it may give any file any content's name
    try:
        data = json.loads(store.read_bytes())
        return {key: _entry(*value) for key, value in data.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.info("%s: %s", store, error.strerror)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s is damaged, and made anew: %s", store, error)
    return {}


def _entry(stamp: Stamp, digest: str) -> tuple[Stamp, str]:
    whole = isinstance(stamp, list) and len(stamp) == 3 and all(type(n) is int for n in stamp)
    if not whole or not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"it says {stamp!r}: {digest!r}"[:200])
    return stamp, digest


def _remember(new: Mapping[str, tuple[Stamp, str]]) -> None:
    """Add to the store, in one step. Of two processes at once one may be lost: it hashes again."""
    known = _remembered()
    if all(known.get(key) == value for key, value in new.items()):
        return
    for key in new:
        known.pop(key, None)
    kept = dict(list({**known, **new}.items())[-MAX_REMEMBERED:])
    store = cache.cache_dir() / STORE
    temporary = store.with_name(f"{cache.UNFINISHED}{STORE}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        cache.make_folder()
        temporary.touch(0o600, exist_ok=False)
        temporary.write_text(json.dumps(kept))
        os.replace(temporary, store)
    except OSError as error:
        _log.info("hashes of files are not remembered: %s", error)
    finally:  # also after Ctrl-C
        if cache.has(temporary):
            temporary.unlink()
