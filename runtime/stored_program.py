"""The programs among the files of an artifact: each with its binaries, and sources for people.

An artifact's first program lies at its root, further ones of the same module in `programs/<n>/`.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.program import Program
from ..ir.signature import Signature
from ..ir.target import get_target
from .program_json import program_from_json, program_to_json
from .signature_json import parameters_to_json, signature_from_json, signature_to_json
from .storage import PROGRAM

GRAPH, MODULE = "graph.ir", "module.json"
_SUFFIX = {"cpp": ".cpp", "triton": ".py"}
_BINARY_SUFFIX = {"cpu": ".so", "cuda": ".cubin", "hip": ".hsaco"}


@dataclass(frozen=True)
class StoredProgram:
    """A program with the text of the graph it was built from; a module's with its signature."""

    program: Program
    graph_text: str | None = None
    signature: Signature | None = None
    weight_names: Mapping[str, str] = field(default_factory=dict)  # where the file has another name

    @property
    def stored_names(self) -> dict[str, str]:
        """For each of its weights the name of the array in the artifact."""
        return {b.name: self.weight_names.get(b.name, b.name) for b in self.program.weights}


def files_of(programs: Sequence[StoredProgram]) -> dict[str, Any]:
    """Content by name; plain data where the file is JSON."""
    files: dict[str, Any] = {}
    for index, stored in enumerate(programs):
        files |= _files_of(stored, _folder(index))
    return files


def module_to_json(
    parameters: inspect.Signature, programs: Sequence[StoredProgram]
) -> dict[str, Any]:
    """What module.json holds. UnsupportedModel for what plain data cannot tell."""
    entries = []
    for stored in programs:
        assert stored.signature is not None, "a module's program has one"
        signature = signature_to_json(stored.signature)
        entries.append({"signature": signature, "weights": dict(stored.weight_names)})
    return {"parameters": parameters_to_json(parameters), "programs": entries}


def read_programs(
    module: Any,
    parsed: Callable[[str], Any],
    require: Callable[[str], Any],
    text: Callable[[str], str | None],
) -> tuple[StoredProgram, ...]:
    """The programs of an artifact; `module` is what module.json holds, None without one.

    `parsed`, `require` and `text` give a file as JSON, as bytes, and as text where there is one.
    """
    programs = []
    entries = [None] if module is None else module["programs"]
    if module is None and text(_folder(1) + PROGRAM) is not None:
        entries = [None, None]  # a language model's, and the one that scores tokens
    for index, entry in enumerate(entries):
        folder = _folder(index)
        program = _read_program(parsed(folder + PROGRAM), folder, require)
        graph = text(folder + GRAPH)
        if entry is None:
            programs.append(StoredProgram(program, graph))
            continue
        names = {str(name): str(stored) for name, stored in entry["weights"].items()}
        signature = signature_from_json(entry["signature"], program)
        programs.append(StoredProgram(program, graph, signature, names))
    if len({stored.program.target for stored in programs}) != 1:
        raise ValueError(f"{len(programs)} programs, not all for one target")
    return tuple(programs)


def _folder(index: int) -> str:
    return f"programs/{index}/" if index else ""


def _files_of(stored: StoredProgram, folder: str) -> dict[str, Any]:
    program = stored.program
    suffix = _BINARY_SUFFIX[get_target(program.target).kind]
    binaries = {
        name: folder + _kernel_path(name).removesuffix(suffix) + suffix for name in program.blobs
    }
    files: dict[str, Any] = {
        folder + PROGRAM: {"binaries": binaries, "program": program_to_json(program)}
    }
    files |= {binaries[name]: blob for name, blob in program.blobs.items()}
    for kernel in program.kernels.values():
        files[folder + _source_file(kernel.name, kernel.language)] = kernel.source
    if stored.graph_text is not None:
        files[folder + GRAPH] = stored.graph_text
    return files


def _read_program(data: Any, folder: str, require: Callable[[str], Any]) -> Program:
    blobs = {name: bytes(require(file)) for name, file in data["binaries"].items()}
    languages = {k["name"]: k["language"] for k in data["program"]["kernels"]}
    return program_from_json(
        data["program"],
        blobs,
        lambda name: bytes(require(folder + _source_file(name, languages[name]))).decode(),
    )


def _kernel_path(name: str) -> str:
    # names of kernels and binaries are ours; anything odd becomes an underscore
    return "kernels/" + re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def _source_file(name: str, language: str) -> str:
    return _kernel_path(name) + _SUFFIX[language]
