"""`LLM(model)`: from a checkpoint, a module or an artifact to an engine that generates."""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from ..ir import switches
from ..ir.errors import ArtifactError, CheckpointError, DeviceError, OptionError
from ..ir.program import Program
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32
from ..runtime.artifact import Artifact, is_artifact, load_artifact, save_artifact
from ..runtime.engine import Engine, EngineConfig
from ..runtime.executable import Executable
from ..runtime.llm import LLM as RuntimeLLM
from ..runtime.memory import plan_memory
from ..runtime.runner import ProgramRunner
from ..runtime.tokenizer import Tokenizer
from . import cache
from .compiler import open_device, require_tools, resolve_target
from .machine import isa, release_memory

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

Progress = Callable[[str, int, int], None]  # (what, done, of)


class LLM(RuntimeLLM):
    """A causal language model compiled for this machine.

    `model` is a Hugging Face folder, a `.gguf` file, a transformers module (with `tokenizer`), an
    artifact, or "demo". dtype: "float32", "bfloat16" or "float16"; "auto" is the target's own
    choice. target: "auto", "cpu" or a GPU's ("sm_90"). max_model_len: tokens of one sequence, at
    most what the model allows. kv_cache_bytes: the pool for keys and values. What is compiled is
    kept in the cache (`use_cache`), and found there at the next start.

    Raises CheckpointError, UnsupportedModel, UnsupportedOp, BuildError, OptionError, OutOfMemory.
    """

    def __new__(cls, *_: Any, **options: Any):
        known = list(inspect.signature(cls.__init__).parameters)[1:]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise OptionError(
                f"LLM has no option {', '.join(unknown)}",
                facts=f"its options are {', '.join(known)}",
                fix="leave it out",
            )
        return super().__new__(cls)

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
        switches.check()
        _check_whole("max_num_batched_tokens", max_num_batched_tokens, 1, MAX_STEP_TOKENS)
        _check_whole("max_num_seqs", max_num_seqs, 1)
        _check_whole("seed", seed, 0)
        if kv_cache_bytes is not None:
            _check_whole("kv_cache_bytes", kv_cache_bytes, 1)
        if max_model_len is not None:
            _check_whole("max_model_len", max_model_len, 1)
        request = Request(
            model,
            tokenizer,
            parse_dtype(dtype, "dtype"),
            resolve_target(target),
            parse_dtype(kv_cache_dtype, "kv_cache_dtype"),
            use_cache,
        )
        # a device that is not here is named before minutes of compiling, not after
        device = None if request.is_artifact else open_device(request.target)
        built = get_model(request, progress or (lambda *_: None))
        _check_as_asked(built.artifact, request, target)
        program, facts = built.artifact.program, built.artifact.facts
        if max_model_len is not None and not 0 < max_model_len <= facts["context_len"]:
            raise OptionError(
                f"max_model_len is {max_model_len}",
                facts=f"the model allows 1 to {facts['context_len']} tokens",
                fix="leave it out for all that the model allows",
            )
        context = max_model_len or facts["context_len"]
        device = device or open_device(resolve_target(program.target))
        memory = plan_memory(
            program,
            built.artifact.weights,
            device,
            context_len=context,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_bytes=kv_cache_bytes,
            needs_context=max_model_len is not None,
        )
        try:
            self.executable = Executable(
                program, built.artifact.weights, device, sizes={"pages": memory.num_pages}
            )
        except DeviceError:
            if not request.is_artifact and request.key is not None:
                # a library that does not load must not be found again
                cache.remove(cache.path_of(request.key))
            raise
        config = EngineConfig(
            context_len=context,
            eos_token_ids=frozenset(facts["eos_ids"]),
            max_num_seqs=memory.max_num_seqs,
            max_num_batched_tokens=memory.max_num_batched_tokens,
            seed=seed,
        )
        reader = _read_tokenizer(built.artifact)
        engine = Engine(ProgramRunner(self.executable), config, reader)
        super().__init__(engine, reader, memory=memory)
        self.artifact, self.was_cached = built.artifact, built.was_cached

    @property
    def facts(self) -> Mapping[str, Any]:
        """How the model came about: architecture, layers, dtype, seconds by stage, passes."""
        return self.artifact.facts

    @property
    def program(self) -> Program:
        """The compiled program."""
        return self.artifact.program

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(array.nbytes for array in self.executable.weights.values())

    @property
    def kernels_per_layer(self) -> float:
        """Launches of a decode step that belong to layers, by the number of layers."""
        launches = self.executable.launches(dict.fromkeys(self.program.symbols, 1))
        counted = sum(_is_layer(self.program.steps[launch.step].loc) for launch in launches)
        return counted / max(1, self.facts["num_layers"])

    def save(self, path: str | Path) -> Path:
        """Write an artifact that `LLM(path)` loads without compiling anything."""
        return save_artifact(path, self.artifact)


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
    def is_artifact(self) -> bool:
        """Whether the model is compiled already."""
        return self.path is not None and is_artifact(self.path)

    @property
    def stored(self) -> DType:
        """The dtype of weights: bf16 unless asked, as memory traffic is what decoding costs."""
        return self.dtype or bf16

    def __post_init__(self) -> None:
        if self.tokenizer is not None and not hasattr(self.tokenizer, "backend_tokenizer"):
            raise OptionError(
                f"tokenizer is {self.tokenizer!r}",
                facts="a fast transformers tokenizer is needed, which has a backend_tokenizer",
                fix="pass AutoTokenizer.from_pretrained(folder)",
            )

    def given_tokenizer(self) -> dict[str, Any]:
        """What an artifact stores of the tokenizer that was given; nothing when none was."""
        if self.tokenizer is None:
            return {}
        from ..frontend.tokenizer import from_transformers

        loaded = from_transformers(self.tokenizer).load()
        return {
            "tokenizer_json": loaded.tokenizer.to_str(),
            "chat_template": loaded.chat_template,
            "special_tokens": dict(loaded.special_tokens),
        }

    @property
    def key(self) -> str | None:
        """The cache key; None for a module, whose content has no identity short of reading it.

        None as well where somebody wants to watch the compilation.
        """
        path = self.path
        watched = any(switches.get(name) is not None for name in ("dump", "stop_after"))
        if path is None or watched or not self.use_cache:
            return None
        return cache.key_of(
            {
                "files": cache.file_identity(path),
                "tokenizer": self.given_tokenizer(),
                "dtype": self.stored.name,
                "kv_dtype": str(self.kv_dtype),
                "target": repr(self.target),
                "isa": _isa(self.target),
                "page_size": PAGE_SIZE,
            }
        )


@dataclass(frozen=True)
class Built:
    """A compiled model, and whether it was compiled before."""

    artifact: Artifact
    was_cached: bool


def get_model(request: Request, progress: Progress) -> Built:
    """The compiled model: an artifact as it is, else from the cache, else built now."""
    path = request.path
    if path is not None and not path.exists():
        raise CheckpointError(
            "no such file or folder",
            where=str(path),
            fix="give a .gguf file, a folder with config.json, an artifact, or 'demo';"
            " nothing is downloaded",
        )
    if path is not None and not path.is_dir() and not path.is_file():
        raise CheckpointError(
            "neither a file nor a folder",
            where=str(path),
            facts="it is a device, a pipe or a socket",
            fix="give a .gguf file, a folder with config.json, an artifact, or 'demo'",
        )
    if path is not None and request.is_artifact:
        return Built(_with_tokenizer(_language_model(path), request), was_cached=True)
    key = request.key
    if key is None:
        return Built(build_model(request, progress), was_cached=False)
    kept = cache.path_of(key)
    found = _from_cache(kept)
    if found is not None:
        return Built(found, was_cached=True)
    artifact = build_model(request, progress)
    if not cache.store(kept, artifact):
        return Built(artifact, was_cached=False)
    # read back through the memory map, once the traced module and the checkpoint are gone
    del artifact
    release_memory()
    return Built(load_artifact(kept), was_cached=False)


def _with_tokenizer(artifact: Artifact, request: Request) -> Artifact:
    """The artifact with the tokenizer that was given in place of its own."""
    given = request.given_tokenizer()
    if not given:
        return artifact
    facts = {**artifact.facts, "special_tokens": given.pop("special_tokens")}
    return replace(artifact, facts=facts, **given)


def _language_model(path: Path) -> Artifact:
    artifact = load_artifact(path)
    if artifact.program.kv is None or "context_len" not in artifact.facts:
        raise ArtifactError(
            "the artifact is no language model",
            where=str(path),
            facts=f"it holds the program {artifact.program.name!r} alone",
            fix="give one that `tilewright compile` made of a language model",
        )
    return artifact


def _check_as_asked(artifact: Artifact, request: Request, target: str) -> None:
    """OptionError when what was compiled is not what is asked for now."""
    program, facts = artifact.program, artifact.facts
    kv = {layer.dtype.name for layer in program.kv.layers} if program.kv else set()
    asked = {
        "target": (program.target, None if target == "auto" else request.target.name),
        "dtype": (facts["dtype"], request.dtype and request.dtype.name),
        "kv_cache_dtype": (" and ".join(kv), request.kv_dtype and request.kv_dtype.name),
    }
    for option, (has, wanted) in asked.items():
        if wanted is not None and wanted != has:
            raise OptionError(
                f"{option} is {wanted!r}, and the model was compiled for another",
                where=str(request.model),
                facts=f"it was compiled with {option} {has!r}",
                fix=f"leave {option} out, or compile the model again from its checkpoint",
            )


def _read_tokenizer(artifact: Artifact) -> Tokenizer | None:
    if artifact.tokenizer_json is None:
        return None
    special = artifact.facts["special_tokens"]
    return Tokenizer(artifact.tokenizer_json, artifact.chat_template, special)


def build_model(request: Request, progress: Progress) -> Artifact:
    """Capture, optimize, build."""
    require_tools(request.target)
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
    text = captured.tokenizer.load() if captured.tokenizer is not None else None
    captured_at = time.perf_counter()
    pipeline = language_model(
        None if stored == f32 else stored,
        page_size=PAGE_SIZE,
        kv_dtype=request.kv_dtype,
        max_tokens=MAX_STEP_TOKENS,
    )
    compiled = compile_graph(captured.graph, captured.weights, pipeline, target, progress=progress)
    facts = captured.facts
    seconds = {
        "capture": captured_at - start,
        "compile": time.perf_counter() - captured_at,
    }
    return Artifact(
        program=compiled.program,
        weights=compiled.weights,
        graph_text=str(compiled.graph),
        tokenizer_json=text.tokenizer.to_str() if text else None,
        chat_template=text.chat_template if text else None,
        facts={
            "architecture": facts.architecture,
            "context_len": facts.max_positions or DEFAULT_CONTEXT,
            "eos_ids": list(facts.eos_ids),
            "num_layers": facts.num_layers,
            "hidden_size": facts.hidden_size,
            "vocab_size": facts.vocab_size,
            "dtype": stored.name,
            "fallback_ops": compiled.fallback_ops,
            "special_tokens": dict(text.special_tokens) if text else {},
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "libraries": cache.libraries(),
            "passes": compiled.report.to_json(),
            "notes": list(captured.notes),
        },
    )


def _from_cache(path: Path) -> Artifact | None:
    if not cache.has(path):
        return None
    try:
        artifact = _language_model(path)
    except ArtifactError:
        cache.remove(path)  # damaged, say by a full disk: it is built again
        return None
    cache.touch(path)
    return artifact


def _is_layer(loc: str | None) -> bool:
    return loc is not None and any(part.isdigit() for part in loc.split("."))


def _isa(target: Target) -> list[str]:
    if target.is_gpu:
        return []

    return list(isa())


def parse_dtype(name: str, option: str) -> DType | None:
    """The dtype called `name`, None for "auto". OptionError names the option and the choices."""
    name = str(name).removeprefix("torch.")  # torch.float16 is a name for it too
    if name == "auto":
        return None
    if name not in DTYPES:
        raise OptionError(f"{option} is {name!r}", facts=f"choices: auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_whole(option: str, value: Any, low: int, high: int | None = None) -> None:
    """OptionError unless `value` is a whole number in the range."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        raise OptionError(
            f"{option} is {value!r}",
            facts=f"it is a whole number from {low}" + ("" if high is None else f" to {high}"),
        )
