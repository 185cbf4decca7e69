"""Artifacts: a compiled program on disk, with all that running it needs.

    manifest.json         version, target, tools, size and hash of every other file
    program.json          the program; dims are text
    kernels/              binaries, and their sources for people
    weights.safetensors   memory-mapped when loaded; of all programs
    facts.json            plain data of whoever built it
    states.safetensors    first values of states that do not begin as zeros       (may be missing,
    graph.ir              the graph it was built from, for people                  as the following)
    tokenizer.json, chat_template.jinja, extras/
    module.json           how a module is called: its parameters, a signature for each program
    programs/<n>/         further programs of the module, for other arguments: as at the root

A directory or a .zip (stored, not compressed). No pickle, and no text of a file is ever evaluated.
But the binaries are code, which runs when the program is loaded: hashes show damage, not who wrote
them, so an artifact is to be trusted as far as its author.
"""

import inspect
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..ir.errors import ArtifactError, shown
from ..ir.lazy_arrays import LazyArrays
from ..ir.program import Program
from ..ir.progress import Progress, unwatched
from ..ir.target import get_target
from .cpu import instruction_sets
from .program_json import plain
from .signature_json import parameters_from_json
from .storage import (
    HASH_CHUNK,
    MANIFEST,
    MAX_FILES,
    Create,
    Hasher,
    Storage,
    check_name,
    damaged,
    digest,
    is_ours,
    new_storage,
    open_storage,
)
from .stored_program import MODULE, StoredProgram, files_of, module_to_json, read_programs
from .weight_file import read_weights, write_weights

VERSION = 4  # of this layout; another one is refused
MAX_JSON_BYTES = 512 << 20
FACTS, EXTRAS = "facts.json", "extras/"
WEIGHTS, STATES = "weights.safetensors", "states.safetensors"
TOKENIZER, CHAT = "tokenizer.json", "chat_template.jinja"


@dataclass(frozen=True)
class Artifact:
    """Programs with all that running them needs. When loaded, weights lie in the mapped file.

    A language model has one program, and for a GPU a second one that scores tokens; of a module,
    which has `parameters`, all share weights and states. `facts` is plain data of whoever built it
    (context length, end tokens, versions of libraries); `extras` are files of its own.
    """

    programs: tuple[StoredProgram, ...]
    weights: Mapping[str, Any]
    parameters: inspect.Signature | None = None
    tokenizer_json: str | None = None
    chat_template: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The first program: of a language model, the one that computes logits."""
        return self.programs[0].program


class KnownHashes(Protocol):
    """Who remembers the hashes of files, by what the system says of each when it is opened."""

    def known(self, stat: os.stat_result) -> str | None:
        """The hash of a file that is as it was when `found` told it."""
        ...

    def found(self, stat: os.stat_result, digest: str, when: int) -> None:
        """The hash that was computed from `when` on, in nanoseconds since 1970."""
        ...


def is_artifact(path: Path | str) -> bool:
    """Whether an artifact seems to be at `path`: a directory with a manifest of ours, or a .zip."""
    path = Path(path)
    return (path.is_file() and path.suffix == ".zip") or (path.is_dir() and is_ours(path))


def save_artifact(path: Path | str, artifact: Artifact) -> Path:
    """Write an artifact: whole or not at all, replacing an artifact that is there. -> its path.

    A path that ends in .zip becomes one file. Weights that the program does not use are left out.
    """
    path, program = Path(path), artifact.program
    with new_storage(path) as create:
        files = _Files(create)
        for name, content in files_of(artifact.programs).items():
            files.add(name, content)
        names = [name for stored in artifact.programs for name in stored.stored_names.values()]
        files.add_arrays(WEIGHTS, artifact.weights, list(dict.fromkeys(names)))
        if artifact.states:
            files.add_arrays(STATES, artifact.states, list(artifact.states))
        files.add(FACTS, artifact.facts)
        if artifact.parameters is not None:
            files.add(MODULE, module_to_json(artifact.parameters, artifact.programs))
        texts = {
            TOKENIZER: artifact.tokenizer_json,
            CHAT: artifact.chat_template,
            **{EXTRAS + name: content for name, content in artifact.extras.items()},
        }
        for name, content in texts.items():
            if content is not None:
                files.add(name, content)
        manifest = {
            "format": "tilewright",
            "version": VERSION,
            "name": program.name,
            "target": _target(program),
            "tools": artifact.facts.get("libraries", {}),
            "files": files.table,
        }
        files.add(MANIFEST, manifest)
    return path


def load_artifact(
    path: Path | str, progress: Progress = unwatched, hashes: KnownHashes | None = None
) -> Artifact:
    """Read an artifact and check it: version, every hash, and that this machine can run it.

    A large file whose hash is known to `hashes` is not read for it.
    """
    path = Path(path)
    check_machine(read_manifest(path), path)
    return open_artifact(path, progress, hashes)


def open_artifact(
    path: Path | str, progress: Progress = unwatched, hashes: KnownHashes | None = None
) -> Artifact:
    """`load_artifact` without asking whether this machine can run it: to look at one."""
    path = Path(path)
    storage = open_storage(path)
    manifest = _read_manifest(storage)
    contents = _contents(storage, manifest["files"], progress, hashes)

    def require(name: str) -> Any:
        if name not in contents:
            raise _damaged(path, f"the manifest does not list {name}")
        return contents[name]

    def parsed(name: str) -> Any:
        return _parse(require(name), name, path)

    def text(name: str) -> str | None:
        return bytes(contents[name]).decode() if name in contents else None

    try:
        module = _object(contents[MODULE], MODULE, path) if MODULE in contents else None
        programs = read_programs(module, parsed, require, text)
        weights = read_weights(require(WEIGHTS), WEIGHTS)
        return Artifact(
            programs,
            weights,
            None if module is None else parameters_from_json(module["parameters"]),
            text(TOKENIZER),
            text(CHAT),
            _object(require(FACTS), FACTS, path),
            read_weights(contents[STATES], STATES) if STATES in contents else {},
            {n[len(EXTRAS) :]: bytes(c) for n, c in contents.items() if n.startswith(EXTRAS)},
        )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise _damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error


def read_manifest(path: Path | str) -> Mapping[str, Any]:
    """Only the manifest: name, target, tools, files with sizes. No hash is computed."""
    return _read_manifest(open_storage(Path(path)))


def read_facts(path: Path | str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(manifest, facts) of whoever built it. Nothing else is read, and only their hash checked."""
    path = Path(path)
    storage = open_storage(path)
    manifest = _read_manifest(storage)
    content = _verified(storage, FACTS, manifest["files"].get(FACTS), lambda done: None)
    return manifest, _object(content, FACTS, path)


def check_machine(manifest: Mapping[str, Any], path: Path) -> None:
    """ArtifactError when the artifact is for another processor. GPUs are the device's to check."""
    target = manifest["target"]
    if target.get("kind") != "cpu":
        return
    machine, flags = platform.machine(), set(instruction_sets())
    if target.get("machine") != machine:
        facts = f"it was compiled for {target.get('machine')}, this is {machine}"
    else:
        missing = sorted(set(target.get("isa", ())) - flags)
        if not missing:
            return
        facts = f"it uses {', '.join(missing)}, which this processor lacks"
    raise ArtifactError(
        "the artifact is for another processor",
        where=str(path),
        facts=facts,
        fix="build it again on this machine",
    )


# ---- reading -------------------------------------------------------------------------------


def _read_manifest(storage: Storage) -> dict[str, Any]:
    size = storage.size(MANIFEST)
    manifest = _parse(storage.map(MANIFEST), MANIFEST, storage.path) if size is not None else {}
    if not isinstance(manifest, dict) or manifest.get("format") != "tilewright":
        found = f"no {MANIFEST}" if size is None else f"a {MANIFEST}, which something else wrote"
        raise ArtifactError(
            "this is no artifact",
            where=str(storage.path),
            facts=f"it has {found}",
            fix="`tilewright compile` writes artifacts",
        )
    if manifest.get("version") != VERSION:
        raise ArtifactError(
            "the artifact is of another version",
            where=str(storage.path),
            facts=f"it has version {manifest.get('version')}, this runtime reads {VERSION}",
            fix="build it again with this version of tilewright",
        )
    files, target = manifest.get("files"), manifest.get("target")
    if not isinstance(files, dict) or not isinstance(target, dict) or len(files) > MAX_FILES:
        raise _damaged(storage.path, f"{MANIFEST} lacks its table of files, or its target")
    isa = target.get("isa", [])
    if not isinstance(isa, list) or not all(isinstance(name, str) for name in isa):
        raise _damaged(storage.path, f"{MANIFEST} says of the processor: {shown(isa)}")
    return manifest


def _contents(
    storage: Storage, files: Mapping[str, Any], progress: Progress, hashes: KnownHashes | None
) -> dict[str, Any]:
    """Every file's content, once its hash was found right."""
    total = sum(storage.size(check_name(name)) or 0 for name in files)
    contents, done = {}, 0
    for name, facts in files.items():
        hashed = partial(lambda before, n: progress("load", before + n, total), done)
        contents[name] = _verified(storage, name, facts, hashed, hashes)
        done += len(contents[name])
    return contents


def _verified(
    storage: Storage,
    name: str,
    facts: Any,
    hashed: Callable[[int], None],
    hashes: KnownHashes | None = None,
) -> Any:
    if not isinstance(facts, dict):
        raise _damaged(storage.path, f"the manifest says of {shown(name)}: {shown(facts)}")
    size = storage.size(check_name(name))
    if size is None:
        raise _damaged(storage.path, f"{name} is missing")
    if size != facts.get("bytes"):
        raise _damaged(storage.path, f"{name} has {size} bytes, written were {facts.get('bytes')}")
    content = storage.map(name)
    found = _digest(content, storage.stat(name), hashed, hashes)
    if found != facts.get("sha256"):
        raise _damaged(
            storage.path,
            f"{name} has the hash {found[:16]}..., written was {str(facts.get('sha256'))[:16]}...",
        )
    return content


def _digest(
    content: Any,
    stat: os.stat_result | None,
    hashed: Callable[[int], None],
    hashes: KnownHashes | None,
) -> str:
    if hashes is None or stat is None or len(content) < HASH_CHUNK:
        return digest(content, hashed)
    found, when = hashes.known(stat), time.time_ns()
    if found is None:
        found = digest(content, hashed)
        hashes.found(stat, found, when)
    hashed(len(content))
    return found


def _parse(content: Any, name: str, path: Path) -> Any:
    if len(content) > MAX_JSON_BYTES:
        raise _damaged(path, f"{name} has {len(content)} bytes")
    try:
        return json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{name} is no JSON: {error}") from error


def _object(content: Any, name: str, path: Path) -> dict[str, Any]:
    value = _parse(content, name, path)
    if not isinstance(value, dict):
        raise _damaged(path, f"{name} is no JSON object")
    return value


def _damaged(path: Path, facts: str) -> ArtifactError:
    return damaged("the artifact is", path, facts)


# ---- writing -------------------------------------------------------------------------------


class _Files:
    """Adds files, and keeps the table of them for the manifest."""

    def __init__(self, create: Create):
        self._create = create
        self.table: dict[str, dict[str, Any]] = {}

    def add(self, name: str, content: Any) -> None:
        """A file of bytes, text or, for anything else, JSON."""
        text = content if isinstance(content, bytes | str) else _json(content)
        data = text.encode() if isinstance(text, str) else text
        with self._create(name) as stream:
            stream.write(data)
        self.table[name] = {"bytes": len(data), "sha256": digest(data)}

    def add_arrays(self, name: str, arrays: Mapping[str, Any], names: Sequence[str]) -> None:
        with self._create(name) as stream:
            hasher = Hasher(stream)
            write_weights(hasher, LazyArrays.of(arrays, names))
        self.table[name] = {"bytes": hasher.size, "sha256": hasher.hexdigest()}


def _json(data: Any) -> str:
    return json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n"


def _target(program: Program) -> dict[str, Any]:
    target = get_target(program.target)
    known = {"name": target.name, "kind": target.kind}
    if target.is_gpu:
        return known
    # what the compiler was allowed to use; without such a note, all that this machine has
    isa = list(program.meta.get("isa", instruction_sets()))
    return {**known, "machine": platform.machine(), "isa": isa}
