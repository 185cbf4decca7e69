"""Reading of safetensors files and sharded folders: headers at once, arrays from a memory map."""

import json
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError
from ..ir.types import SAFETENSORS
from .weights import LazyArray

MAX_HEADER_BYTES = 100_000_000  # the format's own bound


def read_safetensors(path: Path) -> dict[str, LazyArray]:
    """Name -> array for one file. Raises `CheckpointError` if it is damaged."""
    data = _map(path)
    header = _Header.parse(path, data)
    return {name: header.array(name, entry) for name, entry in header.entries.items()}


def read_folder(folder: Path) -> dict[str, LazyArray]:
    """Name -> array for all weights in a folder: one file, or shards with their index.

    Raises `CheckpointError` when there are none, naming pickled weights as what they are.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _read_shards(folder, index)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise _no_weights(folder)
    if len(files) > 1 and (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]  # the others are adapters or other formats
    arrays: dict[str, LazyArray] = {}
    for file in files:
        found = read_safetensors(file)
        twice = sorted(found.keys() & arrays.keys())
        if twice:
            raise CheckpointError(
                "two files hold the same weight",
                where=str(folder),
                facts=f"{twice[0]!r} is in {file.name} and in a file before it",
                fix="keep one set of files, or add model.safetensors.index.json",
            )
        arrays |= found
    return arrays


def _read_shards(folder: Path, index: Path) -> dict[str, LazyArray]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict):
        raise CheckpointError(
            "malformed index of shards", where=str(index), facts="it has no 'weight_map' object"
        )
    shards: dict[str, dict[str, LazyArray]] = {}
    arrays = {}
    for name, file in table.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                "malformed index of shards",
                where=str(index),
                facts=f"weight {name!r} is said to be in {file!r}, which is no plain file name",
            )
        if file not in shards:
            shards[file] = read_safetensors(folder / file)
        if name not in shards[file]:
            raise CheckpointError(
                "a shard lacks a weight that the index promises",
                where=str(folder / file),
                facts=f"{name!r} is not among its {len(shards[file])} tensors",
                fix="copy or download the shard again",
            )
        arrays[name] = shards[file][name]
    return arrays


def _no_weights(folder: Path) -> CheckpointError:
    pickled = sorted(
        file.name for end in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(end)
    )
    if pickled:
        return CheckpointError(
            "the weights are pickled, and unpickling runs code from the file",
            where=str(folder),
            facts=f"found {', '.join(pickled[:4])}, but no *.safetensors",
            fix="convert them once: save_pretrained in transformers writes safetensors",
        )
    return CheckpointError(
        "no weights in the folder",
        where=str(folder),
        facts=f"found {', '.join(sorted(f.name for f in folder.iterdir())[:8]) or 'nothing'}",
        fix="give the folder that holds config.json and *.safetensors",
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; `CheckpointError` names line and column when it is damaged."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(
            "a file of the checkpoint cannot be read",
            where=str(path),
            facts=str(error.strerror),
            fix="copy it from where the weights are from",
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            "malformed JSON", where=str(path), facts=str(error), fix="copy the file again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            "malformed JSON",
            where=str(path),
            facts=f"it holds a {type(value).__name__}, an object was expected",
        )
    return value


def _map(path: Path) -> mmap.mmap:
    if not path.is_file():
        raise CheckpointError(
            "a weight file is missing", where=str(path), fix="copy or download it again"
        )
    if path.stat().st_size < 8:
        raise _damaged(path, f"it has {path.stat().st_size} bytes; the header's length takes 8")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _damaged(path: Path, facts: str) -> CheckpointError:
    return CheckpointError(
        "damaged or truncated safetensors file",
        where=str(path),
        facts=facts,
        fix="copy or download the file again and compare its size with the source",
    )


@dataclass(frozen=True)
class _Header:
    path: Path
    data: mmap.mmap
    start: int  # where the arrays begin
    entries: dict[str, dict[str, Any]]

    @classmethod
    def parse(cls, path: Path, data: mmap.mmap) -> "_Header":
        (length,) = struct.unpack_from("<Q", data, 0)
        if length > MAX_HEADER_BYTES or 8 + length > len(data):
            raise _damaged(path, f"a header of {length} bytes in a file of {len(data)}")
        try:
            entries = json.loads(data[8 : 8 + length])
        except (ValueError, RecursionError) as error:
            raise _damaged(path, f"its header is not JSON: {error}") from None
        if not isinstance(entries, dict):
            raise _damaged(path, "its header is not a JSON object")
        entries.pop("__metadata__", None)
        return cls(path, data, 8 + length, entries)

    def array(self, name: str, entry: Any) -> LazyArray:
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise _damaged(self.path, f"the entry of {name!r} is {entry!r}") from None
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise _damaged(self.path, f"the entry of {name!r} is {entry!r}")
        if kind not in SAFETENSORS:
            raise CheckpointError(
                f"weights of dtype {kind} are not read",
                where=f"{self.path}, {name!r}",
                facts=f"dtypes read: {', '.join(SAFETENSORS)}",
            )
        dtype = SAFETENSORS[kind]
        expected = dtype.nbytes
        for extent in shape:
            expected *= extent
        if end - begin != expected or self.start + end > len(self.data):
            raise _damaged(
                self.path,
                f"{name!r}, {dtype}{list(shape)}, takes {expected} bytes; its place is {begin} to "
                f"{end} of {len(self.data) - self.start}",
            )
        offset, count = self.start + begin, expected // dtype.nbytes

        def read() -> np.ndarray:
            flat = np.frombuffer(self.data, dtype.numpy, count=count, offset=offset)
            return flat.reshape(shape)

        return LazyArray(shape, dtype, read)
