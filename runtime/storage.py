"""Where an artifact's files lie: a directory or a zip, read through memory maps, written at once.

Names are relative paths with forward slashes; nothing outside the artifact is ever opened.
"""

import hashlib
import mmap
import os
import secrets
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..ir.errors import ArtifactError
from ..ir.program import ALIGNMENT

MANIFEST = "manifest.json"
PROGRAM = "program.json"
FORMAT = b'"tilewright"'  # stands at the beginning of a manifest
MARK_BYTES = 200
MAX_FILES = 100_000
HASH_CHUNK = 16 << 20


def damaged(what: str, where: Path | str, facts: str) -> ArtifactError:
    """The error for a part of an artifact that is not what was written."""
    fix = "copy the artifact again, or build it again"
    return ArtifactError(f"{what} damaged", where=str(where), facts=facts, fix=fix)


def check_name(name: str) -> str:
    """`name`, if it is one that an artifact's file may have; else ArtifactError."""
    path = PurePosixPath(name)
    bad = not name or path.is_absolute() or ".." in path.parts or str(path) != name or name == "."
    if bad or "\\" in name or ":" in name or any(ord(c) < 32 for c in name) or len(name) > 1024:
        raise ArtifactError(
            "a file of the artifact has a name that leads elsewhere",
            facts=f"it is {name[:200]!r}",
            fix="do not use this artifact: it was not written by us",
        )
    return name


def digest(data: Any, hashed: Callable[[int], None] = lambda done: None) -> str:
    """SHA-256 over the SHA-256 of each 16 MiB: all cores work on a large file.

    `hashed` hears how many bytes are done.
    """
    view = memoryview(data)
    chunks = [view[at : at + HASH_CHUNK] for at in range(0, len(view), HASH_CHUNK)]
    if len(chunks) > 1:
        with ThreadPoolExecutor(min(len(chunks), os.cpu_count() or 1)) as pool:
            parts = []
            for part in pool.map(lambda c: hashlib.sha256(c).digest(), chunks):
                parts.append(part)
                hashed(min(len(parts) * HASH_CHUNK, len(view)))
    else:
        parts = [hashlib.sha256(chunk).digest() for chunk in chunks]
        hashed(len(view))
    return hashlib.sha256(b"".join(parts)).hexdigest()


class Hasher:
    """`digest` of what is written through it."""

    def __init__(self, stream: IO[bytes]):
        self.size, self._stream = 0, stream
        self._whole, self._chunk = hashlib.sha256(), hashlib.sha256()

    def write(self, data: Any) -> None:
        """Write and hash."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        while len(view):
            room = HASH_CHUNK - self.size % HASH_CHUNK
            self._chunk.update(view[:room])
            self.size += len(view[:room])
            view = view[room:]
            if self.size % HASH_CHUNK == 0:
                self._whole.update(self._chunk.digest())
                self._chunk = hashlib.sha256()

    def hexdigest(self) -> str:
        """The digest of all that was written."""
        if self.size % HASH_CHUNK:
            self._whole.update(self._chunk.digest())
            self._chunk = hashlib.sha256()
        return self._whole.hexdigest()


# ---- reading -------------------------------------------------------------------------------


def open_storage(path: Path) -> "Storage":
    """The directory or zip at `path`. ArtifactError when it is neither."""
    if path.is_dir():
        return _Directory(path)
    if path.is_file():
        return _Zip(path)
    raise ArtifactError(
        "no such artifact",
        where=str(path),
        facts="there is neither a directory nor a file",
        fix="check the path; `tilewright compile` writes artifacts",
    )


class _Directory:
    """Files of an artifact, by name: their sizes and contents, large ones mapped, not copied."""

    def __init__(self, path: Path):
        self.path = path
        self._root = path.resolve()
        self._stats: dict[str, os.stat_result] = {}

    def _file(self, name: str) -> Path:
        file = (self._root / check_name(name)).resolve()
        if not file.is_relative_to(self._root):  # a link that leads out
            raise ArtifactError(
                "a file of the artifact lies outside of it",
                where=str(self.path / name),
                facts=f"it is a link to {file}",
                fix="copy the artifact with its links followed",
            )
        return file

    def size(self, name: str) -> int | None:
        """Bytes of a file, None when there is none of that name."""
        file = self._file(name)
        return file.stat().st_size if file.is_file() else None

    def map(self, name: str) -> Any:
        with self._file(name).open("rb") as file:
            self._stats[name] = os.fstat(file.fileno())
            return _map(file.fileno(), self._stats[name].st_size)

    def stat(self, name: str) -> os.stat_result | None:
        """What the system said of a mapped file when it was opened; None where it is no file."""
        return self._stats.get(name)


class _Zip:
    """The same of a zip whose files are stored as they are."""

    def __init__(self, path: Path):
        self.path = path
        with path.open("rb") as file:
            self._map = _map(file.fileno(), os.fstat(file.fileno()).st_size)
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise ArtifactError(
                "the file is no artifact",
                where=str(path),
                facts=f"reading it as a zip: {error}",
                fix="give an artifact's directory or its .zip",
            ) from error
        if len(entries) > MAX_FILES:
            raise self._error(f"it has {len(entries)} files, at most {MAX_FILES} are read")
        self._where: dict[str, tuple[int, int]] = {}
        for entry in entries:
            if not entry.filename.endswith("/"):  # a directory
                self._add(entry)
        end = 0
        for name, (start, size) in sorted(self._where.items(), key=lambda item: item[1]):
            if start < end:  # the same bytes under many names would be hashed as often
                raise self._error(f"{name} lies over another file")
            end = start + size

    def _add(self, entry: zipfile.ZipInfo) -> None:
        name = check_name(entry.filename)
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise self._error(f"{name} is compressed; only stored files are read (zip -0)")
        if entry.flag_bits & 1:
            raise self._error(f"{name} is encrypted")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise self._error(f"{name} is a link")
        if name in self._where:
            raise self._error(f"{name} is there twice")
        header = self._map[entry.header_offset : entry.header_offset + 30]
        if len(header) < 30 or header[:4] != b"PK\3\4":
            raise self._error(f"{name} has no header where the directory says")
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        if start + entry.file_size > len(self._map):
            raise self._error(f"{name} of {entry.file_size} bytes goes past the end of the file")
        self._where[name] = (start, entry.file_size)

    def _error(self, facts: str) -> ArtifactError:
        return ArtifactError(
            "the zip is no artifact of ours, or is damaged",
            where=str(self.path),
            facts=facts,
            fix="copy the artifact again, or unpack it and give its directory",
        )

    def size(self, name: str) -> int | None:
        return self._where[name][1] if check_name(name) in self._where else None

    def map(self, name: str) -> Any:
        start, size = self._where[name]
        return memoryview(self._map)[start : start + size]

    def stat(self, name: str) -> os.stat_result | None:
        return None  # a part of one


Storage = _Directory | _Zip


def _map(descriptor: int, size: int) -> Any:
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""


# ---- writing -------------------------------------------------------------------------------

Create = Callable[[str], IO[bytes]]  # a file of a new artifact by its name, open for writing


@contextmanager
def new_storage(path: Path) -> Iterator[Create]:
    """Write an artifact that appears at `path` whole, when the block ends well, or not at all.

    A path that ends in .zip becomes a zip. An artifact that is there already is replaced; anything
    else that is there is left alone, and an ArtifactError.
    """
    with _written(path):
        _check_replaceable(path)
        with _new_files(path) as create:
            yield create


def check_writable(path: Path) -> None:
    """ArtifactError, before there is anything to write, where no artifact can be made at `path`."""
    with _written(path):
        there = next(folder for folder in path.absolute().parents if folder.exists())
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=there):
            pass


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            "the artifact cannot be written",
            where=str(path),
            facts=f"{error.filename or path.parent}: {error.strerror or error}",
            fix="choose a folder that can be written, with room enough",
        ) from error


@contextmanager
def _new_files(path: Path) -> Iterator[Create]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(temporary, "x", zipfile.ZIP_STORED) as archive:
                yield partial(_create_in_zip, archive)
            os.replace(temporary, path)
        else:
            temporary.mkdir()
            yield partial(_create_in, temporary)
            _replace_directory(temporary, path)
    finally:  # also after Ctrl-C: nothing half-written stays
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def is_ours(path: Path) -> bool:
    """Whether a directory or a zip was written by us, as far as its manifest's beginning says.

    Others have a file of that name as well. One that is damaged is known by the program beside it.
    """
    try:
        if path.is_dir():
            if not (path / MANIFEST).is_file():
                return False
            with (path / MANIFEST).open("rb") as file:
                return FORMAT in file.read(MARK_BYTES) or (path / PROGRAM).is_file()
        if not path.is_file() or not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive, archive.open(MANIFEST) as file:
            return FORMAT in file.read(MARK_BYTES)
    except (OSError, KeyError, ValueError, NotImplementedError, RuntimeError, zipfile.BadZipFile):
        return False  # unreadable, no such file in the zip, compressed or encrypted in some way


def _check_replaceable(path: Path) -> None:
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_ours(path) and not is_empty:
        raise ArtifactError(
            "will not overwrite what is no artifact",
            where=str(path),
            facts=f"{'a directory' if path.is_dir() else 'a file'} without a {MANIFEST} of ours",
            fix="choose another path, or remove it first",
        )


def _replace_directory(new: Path, path: Path) -> None:
    if not path.exists():
        os.rename(new, path)
        return
    old = new.with_suffix(".old")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    shutil.rmtree(old)


def _create_in(root: Path, name: str) -> IO[bytes]:
    file = root / check_name(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.open("xb")


def _create_in_zip(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # a fixed date, so that equal artifacts are equal files
    entry = zipfile.ZipInfo(check_name(name), (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    # the content starts at a multiple of ALIGNMENT, so that it can be used where it lies
    header_bytes = 30 + len(name.encode()) + 20  # fixed part, name, sizes of 64 bits
    gap = -(archive.start_dir + header_bytes) % ALIGNMENT
    if gap:
        gap += ALIGNMENT if gap < 4 else 0
        entry.extra = struct.pack("<HH", 0xD935, gap - 4) + b"\0" * (gap - 4)
    return archive.open(entry, "w", force_zip64=True)
