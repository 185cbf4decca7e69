"""`LLM(model)`: from a checkpoint, a module or an artifact to an engine that generates."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..ir.errors import ArtifactError, OptionError, OutOfMemory
from ..ir.program import Program
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32
from ..runtime.artifact import Artifact, is_artifact, load_artifact, save_artifact
from ..runtime.engine import Engine, EngineConfig
from ..runtime.executable import Executable
from ..runtime.llm import LLM as RuntimeLLM
from ..runtime.runner import ProgramRunner
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
DEFAULT_KV_BYTES = 4 << 30  # the most a KV pool takes unless asked for more
DEFAULT_CONTEXT = 8192  # of models that state no limit

Progress = Callable[[str, int, int], None]  # (what, done, of)


@dataclass(frozen=True)
class BuildFacts:
    """How a program came about: what the demo and `inspect` print."""

    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage
    was_cached: bool = False


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
        request = BuildRequest(
            model, tokenizer, _dtype(dtype, "dtype"), resolve_target(target),
            _dtype(kv_cache_dtype, "kv_cache_dtype"), use_cache,
        )  # fmt: skip
        if not 0 < max_num_batched_tokens <= MAX_STEP_TOKENS:
            raise OptionError(
                f"max_num_batched_tokens is {max_num_batched_tokens}",
                facts=f"a step takes 1 to {MAX_STEP_TOKENS} tokens",
            )
        built = build_language_model(request, progress or (lambda *_: None))
        program, facts = built.artifact.program, built.artifact.facts
        device = open_device(resolve_target(program.target))
        context = facts.get("max_positions") or DEFAULT_CONTEXT
        if max_model_len is not None and not 0 < max_model_len <= context:
            raise OptionError(
                f"max_model_len is {max_model_len}", facts=f"the model allows 1 to {context} tokens"
            )
        context = max_model_len or context
        pages = _num_pages(program, device, context, max_num_seqs, kv_cache_bytes)
        executable = Executable(program, built.artifact.weights, device, sizes={"pages": pages})
        text = built.artifact.tokenizer_json
        reader = text and Tokenizer(
            text, built.artifact.chat_template, built.artifact.facts.get("special_tokens")
        )
        config = EngineConfig(
            context_len=context,
            eos_token_ids=frozenset(facts.get("eos_ids", ())),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            seed=seed,
        )
        super().__init__(Engine(ProgramRunner(executable), config, reader or None), reader or None)
        self.executable, self.program, self.facts = executable, program, facts
        self.build = built.facts

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(array.nbytes for array in self.executable.weights.values())

    @property
    def kernels_per_layer(self) -> float:
        """Launches of one step that belong to layers, by the number of layers."""
        counted = sum(_is_layer(step.loc) for step in self.program.steps)
        return counted / max(1, self.facts.get("num_layers", 1))


@dataclass(frozen=True)
class BuildRequest:
    """What decides a compiled model."""

    model: Any
    tokenizer: Any
    dtype: DType | None  # None: the target's own choice
    target: Target
    kv_dtype: DType | None
    use_cache: bool

    def key(self) -> str | None:
        """The cache key; None for a module in memory, whose identity is not known."""
        if not isinstance(self.model, (str, Path)):
            return None
        return cache.key_of(
            {
                "files": cache.file_identity(Path(self.model)),
                "dtype": str(self.dtype),
                "kv_dtype": str(self.kv_dtype),
                "target": repr(self.target),
                "isa": _isa(self.target),
                "page_size": PAGE_SIZE,
            }
        )


@dataclass(frozen=True)
class Built:
    """An artifact in memory, and how it came about."""

    artifact: Artifact
    facts: BuildFacts


def build_language_model(request: BuildRequest, progress: Progress) -> Built:
    """The compiled model: an artifact as it is, else from the cache, else built now."""
    start = time.perf_counter()
    model = request.model
    if model == "demo":
        from .demo_model import demo_path

        request = _with_model(request, demo_path())
        model = request.model
    if isinstance(model, (str, Path)) and is_artifact(Path(model)):
        artifact = load_artifact(Path(model))
        return Built(artifact, BuildFacts({"load": time.perf_counter() - start}, True))
    if isinstance(model, (str, Path)) and not Path(model).exists():
        request = _with_model(request, _require_path(model))
    key = request.key() if request.use_cache else None
    if key is not None:
        found = _from_cache(cache.path_of(key))
        if found is not None:
            return Built(found, BuildFacts({"load": time.perf_counter() - start}, True))
    artifact, seconds = compile_language_model(request, progress)
    if key is not None:
        path = cache.path_of(key)
        save_artifact(path, artifact)
        # read back through the memory map, so that the copy made while building can go
        del artifact
        artifact = load_artifact(path)
    return Built(artifact, BuildFacts(seconds, False))


def compile_language_model(
    request: BuildRequest, progress: Progress
) -> tuple[Artifact, dict[str, float]]:
    """Capture, optimize, build. -> the artifact, and seconds by stage."""
    # the front end brings torch and transformers: a start from the cache does without
    from ..frontend.huggingface import capture_causal_lm
    from ..passes.pipelines import causal_lm
    from .compiler import compile_graph

    watch = _Stopwatch(progress)
    with watch("capture"):
        stored = request.dtype or request.target.compute_dtype
        if not request.target.is_gpu and request.dtype is None:
            stored = bf16
        request.target.require_dtype(stored, "dtype")
        captured_in = stored if request.target.is_gpu else f32
        captured = capture_causal_lm(request.model, tokenizer=request.tokenizer, dtype=captured_in)
    with watch("compile"):
        pipeline = causal_lm(
            weights_dtype=stored,
            kv_dtype=request.kv_dtype,
            page_size=PAGE_SIZE,
            max_tokens=MAX_STEP_TOKENS,
        )
        compiled = compile_graph(
            captured.graph, captured.weights, pipeline, request.target, progress=progress
        )
    facts = captured.facts
    tokenizer = captured.tokenizer.load() if captured.tokenizer is not None else None
    artifact = Artifact(
        program=compiled.program,
        weights=compiled.weights,
        graph_text=str(compiled.graph),
        tokenizer_json=tokenizer.tokenizer.to_str() if tokenizer else None,
        chat_template=tokenizer.chat_template if tokenizer else None,
        facts={
            "architecture": facts.architecture,
            "vocab_size": facts.vocab_size,
            "max_positions": facts.max_positions,
            "eos_ids": list(facts.eos_ids),
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "dtype": stored.name,
            "special_tokens": dict(tokenizer.special_tokens) if tokenizer else {},
            "report": compiled.report.to_json(),
            "libraries": cache.libraries(),
        },
    )
    return artifact, watch.seconds


class _Stopwatch:
    def __init__(self, progress: Progress):
        self.progress = progress
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str) -> "_Stopwatch":
        self.stage = stage
        return self

    def __enter__(self) -> None:
        self.progress(self.stage, 0, 1)
        self.start = time.perf_counter()

    def __exit__(self, kind: object, *_: object) -> None:
        self.seconds[self.stage] = time.perf_counter() - self.start
        if kind is None:
            self.progress(self.stage, 1, 1)


def _with_model(request: BuildRequest, model: Any) -> BuildRequest:
    from dataclasses import replace

    return replace(request, model=model)


def _require_path(model: str | Path) -> Path:
    from ..ir.errors import CheckpointError

    raise CheckpointError(
        "no such file or folder",
        where=str(model),
        fix="give a .gguf file, a folder with config.json, an artifact, or 'demo';"
        " nothing is downloaded",
    )


def _from_cache(path: Path) -> Artifact | None:
    if not path.exists():
        return None
    try:
        artifact = load_artifact(path)
    except ArtifactError:
        cache.remove(path)  # damaged, say by a full disk: build it again
        return None
    cache.touch(path)
    return artifact


def _num_pages(
    program: Program, device: Any, context: int, max_num_seqs: int, kv_cache_bytes: int | None
) -> int:
    """Pages for all sequences at full length, or as many as the memory given holds."""
    assert program.kv is not None
    page = program.kv.page_bytes
    one = -(-context // program.kv.page_size)
    free = device.free_bytes()
    budget = kv_cache_bytes or min(DEFAULT_KV_BYTES, free // 2)
    pages = min(one * max_num_seqs, budget // page)
    if pages < 1 or (kv_cache_bytes is not None and kv_cache_bytes > free):
        raise OutOfMemory(
            "the KV pool does not fit",
            facts=f"a page of {program.kv.page_size} tokens takes {page:,} bytes; "
            f"{budget:,} bytes are allowed, {free:,} are free",
            fix="raise kv_cache_bytes, or free memory",
        )
    return pages


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
        raise OptionError(
            f"{option} is {name!r}", facts=f"choices: auto, {', '.join(DTYPES)}"
        )
    return DTYPES[name]
