"""Artifacts: a compiled program on disk, with all that running it needs.

    manifest.json         version, target, tools, size and hash of every other file
    program.json          the program; dims are text
    graph.ir              the graph it was built from, for people
    kernels/              binaries, and their sources for people
    weights.safetensors   memory-mapped when loaded
    states.safetensors    first values of states that do not begin as zeros
    model.json, tokenizer.json, chat_template.jinja, special_tokens.json   of a language model

A directory or a .zip (stored, not compressed). No pickle, and no text of a file is ever evaluated.
"""

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import ArtifactError
from ..ir.program import Program
from ..ir.target import get_target
from .cpu import instruction_sets
from .program_json import plain, program_from_json, program_to_json
from .safetensors_file import facts_of, read_safetensors, write_safetensors
from .serving import ModelInfo
from .storage import (
    MANIFEST,
    MAX_FILES,
    Hasher,
    Storage,
    check_name,
    digest,
    new_storage,
    open_storage,
)
from .tokenizer import Tokenizer

VERSION = 1  # of this layout; another one is refused
MAX_JSON_BYTES = 512 << 20
_SUFFIX = {"cpp": ".cpp", "triton": ".py"}
_BINARY_SUFFIX = {"cpu": ".so", "cuda": ".cubin", "hip": ".hsaco"}
PROGRAM, GRAPH, WEIGHTS, STATES = "program.json", "graph.ir", "weights.safetensors", "states.safetensors"
MODEL, TOKENIZER, CHAT, SPECIAL = (
    "model.json", "tokenizer.json", "chat_template.jinja", "special_tokens.json",
)  # fmt: skip


@dataclass(frozen=True)
class Artifact:
    """What `load` gives: weights lie in the file and are read when touched."""

    path: Path
    manifest: Mapping[str, Any]
    program: Program
    weights: Mapping[str, np.ndarray]
    states: Mapping[str, np.ndarray] = field(default_factory=dict)
    graph_text: str | None = None
    model: ModelInfo | None = None
    tokenizer: Tokenizer | None = None
    extras: Mapping[str, bytes] = field(default_factory=dict)  # files of the caller's own


def save(
    path: Path | str,
    program: Program,
    weights: Mapping[str, Any],
    extras: Mapping[str, bytes | str] | None = None,
    *,
    states: Mapping[str, Any] | None = None,
    graph_text: str | None = None,
    model: ModelInfo | None = None,
    tokenizer: Tokenizer | None = None,
    tools: Mapping[str, str] | None = None,
) -> Path:
    """Write an artifact: whole or not at all, replacing an artifact that is there. -> its path.

    `weights` may hold more than the program's; those are left out. `extras` are files under
    `extras/`. `tools` names versions for the manifest.
    """
    path = Path(path)
    files: dict[str, dict[str, Any]] = {}
    with new_storage(path) as storage:

        def add(name: str, content: bytes | str) -> None:
            data = content.encode() if isinstance(content, str) else content
            storage.add(name, lambda stream: stream.write(data) and None)
            files[name] = {"bytes": len(data), "sha256": digest(data)}

        def add_arrays(name: str, arrays: Mapping[str, Any], names: list[str]) -> None:
            facts, hasher = facts_of(arrays, names), Hasher()
            storage.add(name, lambda s: write_safetensors(hasher.over(s), arrays, facts))
            files[name] = {"bytes": hasher.size, "sha256": hasher.hexdigest()}

        kind = get_target(program.target).kind
        binaries = {name: _kernel_path(name) + _BINARY_SUFFIX[kind] for name in program.blobs}
        add(PROGRAM, _json({"binaries": binaries, "program": program_to_json(program)}))
        for name, blob in program.blobs.items():
            add(binaries[name], blob)
        for kernel in program.kernels.values():
            add(_source_file(kernel.name, kernel.language), kernel.source)
        add_arrays(WEIGHTS, weights, [b.name for b in program.weights])
        if states:
            add_arrays(STATES, states, list(states))
        if graph_text is not None:
            add(GRAPH, graph_text)
        if model is not None:
            add(MODEL, _json(model.to_json()))
        if tokenizer is not None:
            add(TOKENIZER, tokenizer.json_text)
            add(SPECIAL, _json(tokenizer.special_tokens))
            if tokenizer.chat_template is not None:
                add(CHAT, tokenizer.chat_template)
        for name, content in (extras or {}).items():
            add(f"extras/{name}", content)
        manifest = _json(
            {
                "format": "tilewright",
                "version": VERSION,
                "name": program.name,
                "target": _target(program),
                "tools": dict(tools or {}),
                "files": files,
            }
        )
        storage.add(MANIFEST, lambda stream: stream.write(manifest.encode()) and None)
    return path


def load(path: Path | str) -> Artifact:
    """Read an artifact and check it: version, every hash, and that this machine can run it."""
    artifact = open_artifact(path)
    check_machine(artifact.manifest, artifact.path)
    return artifact


def open_artifact(path: Path | str) -> Artifact:
    """`load` without asking whether this machine can run it: to look at one."""
    path = Path(path)
    storage = open_storage(path)
    manifest = _read_manifest(storage)
    contents = {name: _verified(storage, name, facts) for name, facts in manifest["files"].items()}

    def text(name: str) -> str | None:
        return bytes(contents[name]).decode() if name in contents else None

    def require(name: str) -> Any:
        if name not in contents:
            raise _damaged(path, f"the manifest does not list {name}")
        return contents[name]

    data = _parse(require(PROGRAM), PROGRAM, path)
    try:
        program = _read_program(data, require)
        model = _parse(contents[MODEL], MODEL, path) if MODEL in contents else None
        info = ModelInfo.from_json(model) if model is not None else None
        tokenizer = None
        if TOKENIZER in contents:
            special = _parse(require(SPECIAL), SPECIAL, path)
            tokenizer = Tokenizer(text(TOKENIZER) or "", text(CHAT), special)
        states = read_safetensors(contents[STATES], STATES) if STATES in contents else {}
        return Artifact(
            path,
            manifest,
            program,
            read_safetensors(require(WEIGHTS), WEIGHTS),
            states,
            text(GRAPH),
            info,
            tokenizer,
            {n[7:]: bytes(c) for n, c in contents.items() if n.startswith("extras/")},
        )
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def read_manifest(path: Path | str) -> Mapping[str, Any]:
    """Only the manifest: name, target, tools, files with sizes. No hash is computed."""
    return _read_manifest(open_storage(Path(path)))


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
    if size is None:
        raise ArtifactError(
            "this is no artifact",
            where=str(storage.path),
            facts=f"it has no {MANIFEST}",
            fix="`tilewright compile` writes artifacts",
        )
    if size > MAX_JSON_BYTES:
        raise _damaged(storage.path, f"{MANIFEST} has {size} bytes")
    manifest = _parse(storage.map(MANIFEST), MANIFEST, storage.path)
    if not isinstance(manifest, dict) or manifest.get("format") != "tilewright":
        raise _damaged(storage.path, f"{MANIFEST} is not one of ours")
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
    return manifest


def _verified(storage: Storage, name: str, facts: Any) -> Any:
    if not isinstance(facts, dict):
        raise _damaged(storage.path, f"the manifest says of {name!r}: {facts!r}")
    size = storage.size(check_name(name))
    if size is None:
        raise _damaged(storage.path, f"{name} is missing")
    if size != facts.get("bytes"):
        raise _damaged(storage.path, f"{name} has {size} bytes, written were {facts.get('bytes')}")
    content = storage.map(name)
    found = digest(content)
    if found != facts.get("sha256"):
        raise _damaged(
            storage.path,
            f"{name} has the hash {found[:16]}..., written was {str(facts.get('sha256'))[:16]}...",
        )
    return content


def _read_program(data: Any, require: Any) -> Program:
    blobs = {name: bytes(require(file)) for name, file in data["binaries"].items()}
    languages = {k["name"]: k["language"] for k in data["program"]["kernels"]}
    return program_from_json(
        data["program"],
        blobs,
        lambda name: bytes(require(_source_file(name, languages[name]))).decode(),
    )


def _parse(content: Any, name: str, path: Path) -> Any:
    if len(content) > MAX_JSON_BYTES:
        raise _damaged(path, f"{name} has {len(content)} bytes")
    try:
        return json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{name} is no JSON: {error}") from error


def _damaged(path: Path, facts: str) -> ArtifactError:
    return ArtifactError(
        "the artifact is damaged",
        where=str(path),
        facts=facts,
        fix="copy it again, or build it again",
    )


# ---- writing -------------------------------------------------------------------------------


def _json(data: Any) -> str:
    return json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n"


def _kernel_path(name: str) -> str:
    # names of kernels and binaries are ours; anything odd becomes an underscore
    return "kernels/" + re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def _source_file(name: str, language: str) -> str:
    return _kernel_path(name) + _SUFFIX[language]


def _target(program: Program) -> dict[str, Any]:
    kind = get_target(program.target).kind
    if kind != "cpu":
        return {"name": program.target, "kind": kind}
    # what the compiler was allowed to use; without such a note, all that this machine has
    isa = list(program.meta.get("isa", instruction_sets()))
    return {"name": "cpu", "kind": "cpu", "machine": platform.machine(), "isa": isa}
