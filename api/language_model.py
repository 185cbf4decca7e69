"""`LLM(model)`: from a checkpoint, a module or an artifact to an engine that generates."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from ..ir import switches
from ..ir.errors import DeviceError, OptionError
from ..ir.layout import NUM_PAGES
from ..ir.program import Program
from ..ir.progress import Progress, unwatched
from ..runtime.artifact import Artifact, save_artifact
from ..runtime.engine.engine import Engine, EngineConfig
from ..runtime.engine.llm import EngineLLM
from ..runtime.engine.memory import plan_memory
from ..runtime.engine.runner import ProgramRunner
from ..runtime.engine.tokenizer import Tokenizer
from ..runtime.executable import Executable
from . import cache
from .build_model import MAX_STEP_TOKENS, get_model
from .counted import counted
from .machine import open_device, release_memory, resolve_target
from .records import Records
from .request import Request, parse_dtype


class LLM(EngineLLM):
    """A causal language model compiled for this machine.

    `model` is a Hugging Face folder, a `.gguf` file, an ONNX decoder (its file, or the folder with
    it and its tokenizer), a transformers module (with `tokenizer`), an artifact, or "demo". dtype:
    "float32", "bfloat16" or "float16"; "auto" is the target's own choice. target: "auto", "cpu" or
    a GPU's ("sm_90"). max_model_len: tokens of one sequence, at most what the model allows.
    kv_cache_bytes: the pool for keys and values. max_num_seqs and max_num_batched_tokens: how much
    one step computes at most; left out, what the device has memory for: on a GPU up to 512
    sequences and 2,048 tokens, on a CPU 64 and 512. What is compiled is kept in the cache
    (`use_cache`), and found there at the next start. records: the file of tuning records that its
    schedules are from, "none" for the default ones; else the user's own (docs/tuning.md).
    `progress` is called with (stage, done, of) while that goes on: see ir/progress.py. A checkpoint
    without a tokenizer takes lists of token numbers. `with LLM(...) as llm:` gives the memory back
    at the end of the block. Threads may share it, and on the CPU forked processes too: requests
    that run stay the parent's.

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
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        seed: int = 0,
        use_cache: bool = True,
        records: Records = None,
        progress: Progress = unwatched,
    ):
        switches.check()
        _check_whole("seed", seed, 0)
        for option, value, high in (
            ("max_num_batched_tokens", max_num_batched_tokens, MAX_STEP_TOKENS),
            ("max_num_seqs", max_num_seqs, None),
            ("kv_cache_bytes", kv_cache_bytes, None),
            ("max_model_len", max_model_len, None),
        ):
            if value is not None:
                _check_whole(option, value, 1, high)
        request = Request(
            model,
            tokenizer,
            parse_dtype(dtype, "dtype"),
            resolve_target(target),
            parse_dtype(kv_cache_dtype, "kv_cache_dtype"),
            use_cache,
            records,
        )
        # a device that is not here is named before minutes of compiling, not after
        device = None if request.is_artifact else open_device(request.target)
        built = get_model(request, progress)
        _check_as_asked(built.artifact, request, target)
        program, facts = built.artifact.program, built.artifact.facts
        if max_model_len is not None and max_model_len > facts["context_len"]:
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
            executable = Executable(
                program,
                counted(built.artifact.weights, "place", progress),
                device,
                sizes={NUM_PAGES: memory.num_pages},
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
        scores = [Executable(each.program, {}, device) for each in built.artifact.programs[1:]]
        engine = Engine(ProgramRunner(executable, scores=next(iter(scores), None)), config, reader)
        super().__init__(engine, reader, memory=memory)
        self.artifact, self.was_cached = built.artifact, built.was_cached

    @property
    def executable(self) -> Executable:
        """The program with its weights on the device. RequestError once the model is closed."""
        return self.engine.runner.executable

    def close(self) -> None:
        """Give back weights, pages and temporary memory; what still runs ends as aborted.

        RequestError at any later use. `with LLM(...) as llm:` closes at the end of the block.
        """
        super().close()
        self.artifact = replace(self.artifact, weights={})
        release_memory()

    def __repr__(self) -> str:
        facts = self.facts
        state = f"{self.memory}" if self._engine is not None else "closed"
        return f"<LLM {facts['architecture']}, {facts['dtype']} on {self.program.target}: {state}>"

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
        assert self.engine  # raises where it is closed, and with it the weights
        return save_artifact(path, self.artifact)


def _check_as_asked(artifact: Artifact, request: Request, target: str) -> None:
    """OptionError when what was compiled is not what is asked for now."""
    program, facts = artifact.program, artifact.facts
    kv = {pool.dtype.name for pool in program.kv.pools} if program.kv else set()
    asked = {
        "target": (program.target, None if target == "auto" else request.target.name),
        "dtype": (facts["dtype"], request.dtype and request.dtype.name),
        "kv_cache_dtype": (" and ".join(sorted(kv)), request.kv_dtype and request.kv_dtype.name),
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
    templates = dict(artifact.facts.get("chat_templates", {}))
    if artifact.chat_template is not None:
        templates["default"] = artifact.chat_template
    return Tokenizer(artifact.tokenizer_json, templates, artifact.facts["special_tokens"])


def _is_layer(loc: str | None) -> bool:
    return loc is not None and any(part.isdigit() for part in re.split(r"[./]", loc))


def _check_whole(option: str, value: Any, low: int, high: int | None = None) -> None:
    """OptionError unless `value` is a whole number in the range."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        raise OptionError(
            f"{option} is {value!r}",
            facts=f"it is a whole number from {low}" + ("" if high is None else f" to {high}"),
        )
