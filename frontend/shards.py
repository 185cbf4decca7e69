"""Reading of safetensors files and sharded folders: headers at once, arrays from a memory map."""

import json
import logging
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError, listed, shown
from ..ir.lazy_arrays import LazyArray
from ..ir.safetensors import (
    MAX_HEADER_BYTES,
    DamagedHeader,
    Entry,
    read_header,
    strict_json,
)

MAX_JSON_BYTES = MAX_HEADER_BYTES  # of an index, which names as many tensors, or a config
MAX_NAME = 255  # bytes of a file's name, on every system

_log = logging.getLogger("tilewright.frontend")


def read_shard(path: Path) -> dict[str, LazyArray]:
    """Name -> array for one file. Raises `CheckpointError` if it is damaged."""
    data = _map(path)
    try:
        entries = read_header(data)
    except DamagedHeader as error:
        raise CheckpointError(
            error.what,
            where=str(path),
            facts=error.facts,
            fix="copy or download the file again and compare its size with the source",
        ) from error
    odd = [entry.name for entry in entries.values() if not entry.is_aligned]
    if odd:
        _log.warning(
            "%s: %d tensors start at odd addresses, the first is %s: they are copied when read",
            path,
            len(odd),
            shown(odd[0]),
        )
    return {name: _array(data, entry) for name, entry in entries.items()}


def _array(data: Any, entry: Entry) -> LazyArray:
    # one that starts at an odd address is copied
    return LazyArray(
        entry.shape, entry.dtype, lambda: np.require(entry.view(data), requirements="A")
    )


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
        found = read_shard(file)
        twice = sorted(found.keys() & arrays.keys())
        if twice:
            raise _twice(folder, [f"{shown(n)} is in {file.name} and before it" for n in twice])
        arrays |= found
    return arrays


def _read_shards(folder: Path, index: Path) -> dict[str, LazyArray]:
    """What the index promises, each weight from the one shard that holds it."""
    table = read_json(index, strict=True).get("weight_map")
    if not isinstance(table, dict):
        raise _bad_index(index, ["it has no 'weight_map' object"])
    odd = [
        f"weight {shown(name)} is said to be in {shown(file)}, which is no plain file name"
        for name, file in table.items()
        if not _is_plain(file)
    ]
    if odd:
        raise _bad_index(index, odd)
    files = sorted(set(table.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(
            "a weight file is missing",
            where=str(folder),
            facts=f"{len(missing)} of {len(files)}: {listed(missing, ', ')}",
            fix="copy or download it again",
        )
    shards = {file: read_shard(folder / file) for file in files}
    problems = [
        f"{shown(name)} is not among the {len(shards[file])} tensors of {file}"
        for name, file in table.items()
        if name not in shards[file]
    ]
    if problems:
        raise CheckpointError(
            "a shard lacks a weight that the index promises",
            where=str(index),
            facts=listed(problems),
            fix="copy or download the shard again",
        )
    twice = [
        f"{shown(name)} is in {file}, the index says in {table[name]}"
        for file, arrays in shards.items()
        for name in arrays
        if table.get(name, file) != file
    ]
    if twice:
        raise _twice(folder, twice)
    # a tensor that the index leaves out is there all the same
    return {name: array for arrays in shards.values() for name, array in arrays.items()}


def _is_plain(file: Any) -> bool:
    """Whether `file` is the name of a file in the folder itself."""
    return (
        isinstance(file, str)
        and 0 < len(file.encode("utf-8", "replace")) <= MAX_NAME
        and file.isprintable()
        and Path(file).name == file
        and file != ".."
    )


def _bad_index(index: Path, problems: list[str]) -> CheckpointError:
    return CheckpointError(
        "malformed index of shards",
        where=str(index),
        facts=listed(problems),
        fix="copy it again from where the weights are from",
    )


def _twice(folder: Path, facts: list[str]) -> CheckpointError:
    return CheckpointError(
        "two files hold the same weight",
        where=str(folder),
        facts=listed(facts),
        fix="keep one set of files, or add model.safetensors.index.json",
    )


def _no_weights(folder: Path) -> CheckpointError:
    pickled = sorted(
        file.name for end in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(end)
    )
    if pickled:
        return CheckpointError(
            "the weights are pickled, and unpickling runs code from the file",
            where=str(folder),
            facts=f"found {listed(pickled, ', ')}, but no *.safetensors",
            fix="convert them once: save_pretrained in transformers writes safetensors",
        )
    return CheckpointError(
        "no weights in the folder",
        where=str(folder),
        facts=f"found {listed(sorted(f.name for f in folder.iterdir()), ', ') or 'nothing'}",
        fix="give the folder that holds config.json and *.safetensors",
    )


def read_json(path: Path, *, strict: bool = False) -> dict[str, Any]:
    """The object in a JSON file; `CheckpointError` names line and column when it is damaged.

    `strict` refuses a name that is there twice; else the last counts, as in transformers.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(
                f"it has {path.stat().st_size} bytes, at most {MAX_JSON_BYTES} are read"
            )
        text = path.read_text("utf-8")
        value = strict_json(text) if strict else json.loads(text)
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            "malformed JSON", where=str(path), facts=str(error)[:300], fix="copy the file again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            "malformed JSON",
            where=str(path),
            facts=f"it holds a {type(value).__name__}, an object was expected",
        )
    return value


def _map(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(
            "a weight file is missing", where=str(path), fix="copy or download it again"
        )
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""  # nothing can be mapped of an empty file
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        "a file of the checkpoint cannot be read",
        where=str(path),
        facts=str(error.strerror),
        fix="check that it is there, and who may read it",
    )
