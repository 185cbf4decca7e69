"""From a request to a compiled language model: an artifact as it is, from the cache, or built."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.collection import collection_paused
from ..ir.errors import ArtifactError, CheckpointError
from ..ir.progress import Progress, unwatched
from ..ir.types import f32
from ..runtime.artifact import Artifact, load_artifact
from ..runtime.stored_program import StoredProgram
from . import cache
from .artifact_facts import check_facts, is_language_model
from .compile_model import require_onnx
from .identity import Hashes
from .machine import release_memory
from .request import PAGE_SIZE, Request

if TYPE_CHECKING:
    from ..frontend.causal_lm import CausalLM
    from ..passes import Pass

MAX_STEP_TOKENS = 8192  # the range of a program's token dim
DEFAULT_CONTEXT = 8192  # of models that state no limit


@dataclass(frozen=True)
class Built:
    """A compiled model, and whether it was compiled before."""

    artifact: Artifact
    was_cached: bool


def get_model(request: Request, progress: Progress) -> Built:
    """The compiled model: an artifact as it is, else from the cache, else built now."""
    path = request.path
    if path is not None and not path.is_dir() and not path.is_file():
        is_there = path.exists()
        raise CheckpointError(
            "neither a file nor a folder" if is_there else "no such file or folder",
            where=str(path),
            facts="it is a device, a pipe or a socket" if is_there else "",
            fix="give a .gguf file, a folder with config.json, an artifact, or 'demo';"
            " nothing is downloaded",
        )
    if path is not None and request.is_artifact:
        artifact = _language_model(load_artifact(path, progress), path)
        return Built(_with_tokenizer(artifact, request), was_cached=True)
    key = request.key
    if key is None:
        return Built(build_model(request, progress), was_cached=False)
    kept = cache.path_of(key)
    found = from_cache(kept, progress)
    if found is not None:
        return Built(found, was_cached=True)
    artifact = build_model(request, progress)
    if not cache.store(kept, artifact, lambda: _check_unchanged(request, key)):
        return Built(artifact, was_cached=False)
    # read back through the memory map, once the traced module and the checkpoint are gone
    del artifact
    release_memory()
    return Built(_load_ours(kept, progress), was_cached=False)


def _check_unchanged(request: Request, key: str) -> None:
    """CheckpointError when the model's files are not those that were there at the start."""
    if request.key != key:
        raise CheckpointError(
            "the model's files changed while it was compiled",
            where=str(request.path),
            facts="what was read is a mixture of both",
            fix="start again once they are written",
        )


def _with_tokenizer(artifact: Artifact, request: Request) -> Artifact:
    """The artifact with the tokenizer that was given in place of its own."""
    given = request.given_tokenizer()
    if not given:
        return artifact
    facts = given.pop("facts")
    ends = [*artifact.facts["eos_ids"], *facts.pop("eos_ids")]
    facts = {**artifact.facts, **facts, "eos_ids": list(dict.fromkeys(ends))}
    return replace(artifact, facts=facts, **given)


def _load_ours(path: Path, progress: Progress) -> Artifact:
    """An artifact of the cache. The hash of its weights is remembered: no need to read them all."""
    hashes = Hashes(grain_ns=0)
    artifact = load_artifact(path, progress, hashes)
    hashes.save()
    return artifact


def _language_model(artifact: Artifact, path: Path) -> Artifact:
    if artifact.program.kv is None or not is_language_model(artifact.facts):
        raise ArtifactError(
            "the artifact is no language model",
            where=str(path),
            facts=f"it holds the program {artifact.program.name!r} alone"
            if artifact.parameters is None
            else f"it holds the module {artifact.facts.get('module')}",
            fix="give one that `tilewright compile` made of a language model; a module is called:"
            " tilewright.load(path)",
        )
    check_facts(artifact.facts, path)
    return artifact


def build_model(request: Request, progress: Progress) -> Artifact:
    """Import what captures and compiles, capture, optimize and build."""
    start = time.perf_counter()
    # what compiles is loaded here: what is compiled already does without
    from .compile_graph import compile_graph, require_tools

    require_tools(request.target)
    progress("start", 0, 1)
    stored, target = request.stored, request.target
    target.require_dtype(stored, "dtype")
    with collection_paused():
        front_end = _front_end(request)
        imported_at = time.perf_counter()
        captured = front_end(progress=progress)
        source = captured.tokenizer
        # without one, prompts are lists of token numbers
        text = source.load().stored() if source is not None and source.exists else {}
    text_facts = text.pop("facts", {"special_tokens": {}, "chat_templates": {}, "eos_ids": []})
    captured_at = time.perf_counter()
    compiled = compile_graph(
        captured.graph,
        captured.weights,
        pipeline_of(request),
        target,
        records=request.records,
        progress=progress,
    )
    facts = captured.facts
    programs = [StoredProgram(compiled.program, compiled.graph_text)]
    if target.is_gpu:
        from .token_scores import score_program

        logits = compiled.program.buffers[compiled.program.outputs[0]]
        programs.append(score_program(logits.type.shape[-1], target, request.records))
    seconds = {
        "import": imported_at - start,  # of torch, transformers and what compiles
        "capture": captured_at - imported_at,
        "compile": time.perf_counter() - captured_at,
    }
    return Artifact(
        programs=tuple(programs),
        weights=compiled.weights,
        **text,
        facts={
            **text_facts,
            "architecture": facts.architecture,
            "source": str(request.path.resolve()) if request.path is not None else None,
            "context_len": facts.max_positions or DEFAULT_CONTEXT,
            "eos_ids": list(dict.fromkeys([*facts.eos_ids, *text_facts["eos_ids"]])),
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "vocab_size": facts.vocab_size,
            "dtype": stored.name,
            "fallback_ops": compiled.fallback_ops,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "libraries": cache.libraries(),
            "passes": compiled.report.to_json(),
            "notes": list(captured.notes),
        },
    )


def capture(request: Request, progress: Progress = unwatched) -> "CausalLM":
    """The model as a graph over tokens, before any pass."""
    return _front_end(request)(progress=progress)


def _front_end(request: Request) -> Callable[..., "CausalLM"]:
    """What captures the model, a function of `progress`, with the libraries it needs imported."""
    from ..frontend.onnx.lm_folder import find_onnx

    found = None if request.path is None else find_onnx(request.path)
    if found is not None:
        require_onnx()
        from ..frontend.onnx.lm_capture import capture_onnx_lm

        return partial(capture_onnx_lm, found, tokenizer=request.tokenizer)
    from ..frontend.huggingface import capture_causal_lm  # brings torch and transformers

    return partial(
        capture_causal_lm,
        request.path or request.model,
        tokenizer=request.tokenizer,
        dtype=request.computed,
    )


def pipeline_of(request: Request) -> tuple["Pass", ...]:
    """The passes that make a paged program of a captured model."""
    from ..passes.pipelines import language_model

    stored = request.stored
    return language_model(
        None if stored == f32 else stored,
        page_size=PAGE_SIZE,
        kv_dtype=request.kv_dtype,
        max_tokens=MAX_STEP_TOKENS,
        stacks=request.target.has_tile_copies,
    )


def from_cache(path: Path, progress: Progress) -> Artifact | None:
    """The artifact at `path`; None when there is none, or when it was damaged and is gone now."""
    if not cache.has(path):
        return None
    cache.check_private(path)
    try:
        artifact = _language_model(_load_ours(path, progress), path)
    except ArtifactError:
        cache.remove(path)  # damaged, say by a full disk: it is built again
        return None
    cache.touch(path)
    return artifact
