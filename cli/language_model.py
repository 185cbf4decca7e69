"""`LLM(model)`: from a checkpoint, a module or an artifact to an engine that generates."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import ArtifactError, CheckpointError, OptionError
from ..ir.program import Program
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32
from ..runtime import artifact as artifacts
from ..runtime.llm import LLM as RuntimeLLM
from ..runtime.serving import ModelInfo, ServeOptions, build_llm
from ..runtime.tokenizer import Tokenizer
from . import cache
from .compiler import open_device, resolve_target

DTYPES = {
    "float32": f32,
    "f32": f32,
    "bfloat16": bf16,
    "bf16": bf16,
    "float16": f16,
    "f16": f16,
}
MAX_STEP_TOKENS = 8192  # the range of a program's token dim
PAGE_SIZE = 16
DEFAULT_CONTEXT = 8192  # of models that state no limit
FACTS = "build.json"  # the artifact's file of facts below

Progress = Callable[[str, int, int], None]  # (what, done, of)


@dataclass(frozen=True)
class Model:
    """A compiled language model: what an artifact holds, and how it came about."""

    program: Program
    weights: Mapping[str, np.ndarray]
    info: ModelInfo
    tokenizer: Tokenizer | None
    facts: Mapping[str, Any]  # architecture, layers, dtype, seconds by stage, what passes did
    graph_text: str = ""
    was_cached: bool = False

    def save(self, path: str | Path) -> Path:
        """Write an artifact."""
        return artifacts.save(
            path,
            self.program,
            self.weights,
            {FACTS: json.dumps(dict(self.facts), indent=1)},
            graph_text=self.graph_text,
            model=self.info,
            tokenizer=self.tokenizer,
            tools={k: v for k, v in cache.libraries().items() if v is not None},
        )


class LLM(RuntimeLLM):
    """A causal language model compiled for this machine.

    `model` is a Hugging Face folder, a `.gguf` file, a transformers module (with `tokenizer`), an
    artifact, or "demo". dtype: "float32", "bfloat16" or "float16"; "auto" is the target's own
    choice. target: "auto", "cpu" or a GPU's ("sm_90"). max_model_len: tokens of one sequence, at
    most what the model allows. kv_cache_bytes: the pool for keys and values. What is compiled is
    kept in the cache (`use_cache`), and found there at the next start.

    Raises CheckpointError, UnsupportedModel, UnsupportedOp, BuildError, OptionError, OutOfMemory.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        target: str = "auto",
        max_model_len: int | None = None,
        kv_cache_dtype: str = "auto",
        kv_cache_bytes: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        seed: int = 0,
        use_cache: bool = True,
        progress: Progress | None = None,
    ):
        if not 0 < max_num_batched_tokens <= MAX_STEP_TOKENS:
            raise OptionError(
                f"max_num_batched_tokens is {max_num_batched_tokens}",
                facts=f"a step takes 1 to {MAX_STEP_TOKENS} tokens",
            )
        options = ServeOptions(
            max_model_len, max_num_seqs, max_num_batched_tokens, kv_cache_bytes, seed
        )
        request = Request(
            model,
            tokenizer,
            _dtype(dtype, "dtype"),
            resolve_target(target),
            _dtype(kv_cache_dtype, "kv_cache_dtype"),
            use_cache,
        )
        built = get_model(request, progress or (lambda *_: None))
        device = open_device(resolve_target(built.program.target))
        llm = build_llm(
            built.program, built.weights, device, built.info, built.tokenizer, options
        )
        super().__init__(llm.engine, llm.tokenizer, llm.default_params, llm.memory)
        self.executable = llm.engine.runner.executable
        self.model = built

    @property
    def program(self) -> Program:
        """The compiled program."""
        return self.model.program

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(array.nbytes for array in self.executable.weights.values())

    @property
    def kernels_per_layer(self) -> float:
        """Launches of one step that belong to layers, by the number of layers."""
        counted = sum(_is_layer(step.loc) for step in self.program.steps)
        return counted / max(1, self.model.facts["num_layers"])

    def save(self, path: str | Path) -> Path:
        """Write an artifact that `LLM(path)` loads without compiling anything."""
        return self.model.save(path)


@dataclass(frozen=True)
class Request:
    """What decides a compiled model."""

    model: Any  # a path, "demo", or a transformers module
    tokenizer: Any = None
    dtype: DType | None = None  # None: the target's own choice
    target: Target = field(default_factory=lambda: resolve_target("auto"))
    kv_dtype: DType | None = None
    use_cache: bool = True

    @property
    def path(self) -> Path | None:
        """Where the model's files are; None for a module in memory."""
        if self.model == "demo":
            from .demo_model import demo_path

            return demo_path()
        return Path(self.model) if isinstance(self.model, (str, Path)) else None

    @property
    def stored(self) -> DType:
        """The dtype of weights: bf16 unless asked, as memory traffic is what decoding costs."""
        return self.dtype or bf16

    @property
    def key(self) -> str | None:
        """The cache key; None for a module, whose content has no identity short of reading it."""
        path = self.path
        if path is None or not self.use_cache:
            return None
        return cache.key_of(
            {
                "files": cache.file_identity(path),
                "dtype": self.stored.name,
                "kv_dtype": str(self.kv_dtype),
                "target": repr(self.target),
                "isa": _isa(self.target),
                "page_size": PAGE_SIZE,
            }
        )


def get_model(request: Request, progress: Progress) -> Model:
    """The compiled model: an artifact as it is, else from the cache, else built now."""
    path = request.path
    if path is not None and not path.exists():
        raise CheckpointError(
            "no such file or folder",
            where=str(path),
            fix="give a .gguf file, a folder with config.json, an artifact, or 'demo';"
            " nothing is downloaded",
        )
    if path is not None and is_artifact(path):
        return read_model(path)
    key = request.key
    if key is None:
        return build_model(request, progress)
    kept = cache.path_of(key)
    found = _from_cache(kept)
    if found is not None:
        return found
    build_model(request, progress).save(kept)
    # read back through the memory map, so that the copy made while building can go
    return replace(read_model(kept), was_cached=False)


def is_artifact(path: Path) -> bool:
    """Whether `path` looks like an artifact: a folder with a manifest, or a zip."""
    return (path / artifacts.MANIFEST).is_file() or path.suffix == ".zip"


def read_model(path: Path) -> Model:
    """Load an artifact. ArtifactError when it is damaged, foreign, or no language model."""
    found = artifacts.load(path)
    if found.model is None or FACTS not in found.extras:
        raise ArtifactError(
            "the artifact is no language model",
            where=str(path),
            facts="it holds a program alone",
            fix="run it with tilewright.load",
        )
    facts = json.loads(found.extras[FACTS])
    return Model(
        found.program,
        found.weights,
        found.model,
        found.tokenizer,
        facts,
        found.graph_text or "",
        was_cached=True,
    )


def build_model(request: Request, progress: Progress) -> Model:
    """Capture, optimize, build."""
    # the front end brings torch and transformers: a start from the cache does without
    from ..frontend.huggingface import capture_causal_lm
    from ..passes.pipelines import language_model
    from .compiler import compile_graph

    stored, target = request.stored, request.target
    target.require_dtype(stored, "dtype")
    start = time.perf_counter()
    progress("capture", 0, 1)
    captured = capture_causal_lm(
        request.path or request.model,
        tokenizer=request.tokenizer,
        # activations: matrix units want them narrow, a CPU gains nothing by it
        dtype=stored if target.is_gpu else f32,
    )
    loaded = captured.tokenizer.load() if captured.tokenizer is not None else None
    captured_at = time.perf_counter()
    pipeline = language_model(
        None if stored == f32 else stored,
        page_size=PAGE_SIZE,
        kv_dtype=request.kv_dtype,
        max_tokens=MAX_STEP_TOKENS,
    )
    compiled = compile_graph(
        captured.graph, captured.weights, pipeline, target, progress=progress
    )
    facts = captured.facts
    return Model(
        compiled.program,
        compiled.weights,
        ModelInfo(
            facts.architecture, facts.max_positions or DEFAULT_CONTEXT, tuple(facts.eos_ids)
        ),
        loaded
        and Tokenizer(loaded.tokenizer.to_str(), loaded.chat_template, loaded.special_tokens),
        {
            "architecture": facts.architecture,
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "vocab_size": facts.vocab_size,
            "dtype": stored.name,
            "fallback_ops": compiled.fallback_ops,
            "seconds": {
                "capture": captured_at - start,
                "compile": time.perf_counter() - captured_at,
            },
            "passes": compiled.report.to_json(),
            "notes": list(captured.notes),
        },
        str(compiled.graph),
    )


def _from_cache(path: Path) -> Model | None:
    if not path.exists():
        return None
    try:
        model = read_model(path)
    except ArtifactError:
        cache.remove(path)  # damaged, say by a full disk: it is built again
        return None
    cache.touch(path)
    return model


def _is_layer(loc: str | None) -> bool:
    return loc is not None and any(part.isdigit() for part in loc.split("."))


def _isa(target: Target) -> list[str]:
    if target.is_gpu:
        return []
    from .machine import isa

    return list(isa())


def _dtype(name: str, option: str) -> DType | None:
    if name == "auto":
        return None
    if name not in DTYPES:
        raise OptionError(f"{option} is {name!r}", facts=f"choices: auto, {', '.join(DTYPES)}")
    return DTYPES[name]
