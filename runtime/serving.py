"""From a compiled language model to an LLM: limits, the page pool by formula, the engine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..ir.dim import symbols_of
from ..ir.errors import OptionError, OutOfMemory
from ..ir.program import Program
from .binding import Sizes
from .device import Device
from .engine import Engine, EngineConfig
from .executable import Executable
from .llm import LLM
from .runner import ProgramRunner
from .sampling import SamplingParams
from .tokenizer import Tokenizer

# share of the free memory that weights, arena and pages may take when no size is asked for: a GPU
# is taken to be ours, a CPU's memory is shared with whatever else runs
GPU_SHARE, CPU_SHARE = 0.92, 0.5


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a language model that its program does not hold."""

    name: str
    context_len: int
    eos_token_ids: tuple[int, ...] = ()
    # what the model's authors recommend, by the names of SamplingParams
    generation: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data for an artifact."""
        return asdict(self) | {"eos_token_ids": list(self.eos_token_ids)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "ModelInfo":
        """The inverse of `to_json`."""
        return ModelInfo(**{**data, "eos_token_ids": tuple(data["eos_token_ids"])})


@dataclass(frozen=True)
class ServeOptions:
    """Limits, under vLLM's names. None: from the model and the memory there is.

    kv_bytes is the size of the page pool.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    kv_bytes: int | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is {value!r}, must be a whole number from 1")


@dataclass(frozen=True)
class MemoryPlan:
    """Where the memory of a serving program goes; all of it known before anything is allocated."""

    num_pages: int
    page_bytes: int
    weight_bytes: int  # that the device must still hold; 0 for weights used where they lie
    arena_bytes: int
    free_bytes: int  # when the plan was made
    context_len: int  # of one sequence, within the pool
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    def __str__(self) -> str:
        return (
            f"weights {_mib(self.weight_bytes)}, arena {_mib(self.arena_bytes)}, KV pool"
            f" {_mib(self.pool_bytes)} ({self.num_pages} pages); free were {_mib(self.free_bytes)}"
        )


def plan_memory(
    program: Program,
    weights: Mapping[str, Any],
    device: Device,
    info: ModelInfo,
    options: ServeOptions,
) -> MemoryPlan:
    """Divide the device's free memory. OutOfMemory says what was needed and what there was."""
    assert program.kv is not None, "a program without KV layout serves no sequences"
    page_size, page_bytes = program.kv.page_size, program.kv.page_bytes
    limits = {name: s.hi for name, s in program.symbols.items()}
    context = min(options.max_model_len or info.context_len, _limit(limits, "width") * page_size)
    if options.max_model_len and context < options.max_model_len:
        raise OptionError(
            f"max_model_len {options.max_model_len} is more than the program was compiled for",
            facts=f"its page tables hold {context} tokens",
        )
    num_seqs = min(options.max_num_seqs, _limit(limits, "seqs"), _limit(limits, "rows"))
    num_tokens = min(max(options.max_num_batched_tokens, num_seqs), _limit(limits, "t"))
    num_seqs = min(num_seqs, num_tokens)
    pages_of_one = -(-context // page_size)
    largest = {"t": num_tokens, "seqs": num_seqs, "rows": num_seqs, "width": pages_of_one}
    arena_bytes = _arena_bytes(program, {**largest, "pages": 1})
    weight_bytes = 0 if device.kind == "cpu" else _weight_bytes(weights, program)
    free = device.free_bytes()
    taken = weight_bytes + arena_bytes
    if options.kv_bytes is not None:
        num_pages = options.kv_bytes // page_bytes
    else:
        share = CPU_SHARE if device.kind == "cpu" else GPU_SHARE
        num_pages = min(num_seqs * pages_of_one, int((free * share - taken) // page_bytes))
    num_pages = min(num_pages, _limit(limits, "pages"))
    # one page is the least; a context that was asked for must fit whole
    least = pages_of_one if options.max_model_len else 1
    if num_pages < least or taken + num_pages * page_bytes > free:
        raise _too_little(options, taken, max(num_pages, least), page_bytes, least, free, device)
    context = min(context, num_pages * page_size)
    return MemoryPlan(
        num_pages, page_bytes, weight_bytes, arena_bytes, free, context, num_seqs, num_tokens
    )


def build_llm(
    program: Program,
    weights: Mapping[str, Any],
    device: Device,
    info: ModelInfo,
    tokenizer: Tokenizer | None = None,
    options: ServeOptions | None = None,
) -> LLM:
    """An LLM over a compiled model. Its `memory` tells where the memory went."""
    options = options or ServeOptions()
    memory = plan_memory(program, weights, device, info, options)
    executable = Executable(program, weights, device, sizes={"pages": memory.num_pages})
    config = EngineConfig(
        context_len=min(options.max_model_len or info.context_len, info.context_len),
        eos_token_ids=frozenset(info.eos_token_ids),
        max_num_seqs=memory.max_num_seqs,
        max_num_batched_tokens=memory.max_num_batched_tokens,
        seed=options.seed,
    )
    engine = Engine(ProgramRunner(executable), config, tokenizer)
    return LLM(engine, tokenizer, SamplingParams(**info.generation), memory)


def _arena_bytes(program: Program, values: Mapping[str, int]) -> int:
    missing = symbols_of(program.arena_bytes) - values.keys()
    assert not missing, f"a serving program has no symbols {', '.join(sorted(missing))}"
    return Sizes(program).arena_bytes({**dict.fromkeys(program.symbols, 1), **values})


def _limit(limits: Mapping[str, int | None], name: str) -> int:
    value = limits.get(name)
    return 1 << 40 if value is None else value


def _weight_bytes(weights: Mapping[str, Any], program: Program) -> int:
    total = 0
    for buffer in program.weights:
        shape = getattr(weights[buffer.name], "shape", ())
        total += int(np.prod(shape, dtype=np.int64)) * buffer.type.dtype.nbytes
    return total


def _too_little(options, taken, num_pages, page_bytes, least, free, device) -> OutOfMemory:
    if options.kv_bytes is not None and options.kv_bytes < least * page_bytes:
        return OutOfMemory(
            "kv_bytes is too small",
            facts=f"needed: {least * page_bytes:,} bytes for {least} pages;"
            f" given: {options.kv_bytes:,} bytes",
            fix="give it more, or ask for a smaller max_model_len",
        )
    needed = taken + num_pages * page_bytes
    return OutOfMemory(
        "the model does not fit into memory",
        where=device.name,
        facts=f"needed: {needed:,} bytes ({taken:,} for weights and temporary buffers,"
        f" {num_pages * page_bytes:,} for {num_pages} pages of keys and values);"
        f" available: {free:,} bytes",
        fix="use a smaller max_model_len, kv_bytes or max_num_batched_tokens, or narrower weights",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
