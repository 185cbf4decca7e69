"""Where the memory of a serving program goes: pages by formula, before anything is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...ir.dim import symbols_of
from ...ir.errors import OptionError, OutOfMemory
from ...ir.layout import NUM_PAGES, NUM_ROWS, NUM_SEQS, NUM_TOKENS, WIDTH
from ...ir.lazy_arrays import LazyArrays
from ...ir.program import Program
from ..binding import Dims
from ..device import Device

# share of the free memory that weights, arena and pages may take when no size is asked for: a GPU
# is taken to be ours, a CPU's memory is shared with whatever else runs
GPU_SHARE, CPU_SHARE = 0.92, 0.5

# (sequences, tokens) of a step when none are asked for: the first whose temporary buffers take no
# more than this part of what weights leave. A CPU gains nothing from more: it is busy with few.
GPU_LIMITS = ((512, 2048), (256, 2048), (128, 1024), (64, 512))
CPU_LIMITS = ((64, 512),)
ARENA_SHARE = 1 / 8
# sequences of full length that the pool holds at most when no size is asked for: more sequences
# are served, and mostly shorter
POOL_SEQS = 64


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
    *,
    context_len: int,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_bytes: int | None = None,
    needs_context: bool = False,
) -> MemoryPlan:
    """Divide the device's free memory. OutOfMemory says what was needed and what there was.

    Limits of a step that are not given are as large as the memory allows. `kv_bytes` is the size of
    the page pool; without it, what `max_num_seqs` sequences of full length need (where that is not
    given, at most POOL_SEQS), within a share of the free memory. With `needs_context` a pool that
    holds less than one sequence of full length is an error, else the context becomes shorter.
    """
    assert program.kv is not None, "a program without KV layout serves no sequences"
    page_size, page_bytes = program.kv.page_size, program.kv.page_bytes
    limits = {name: s.hi for name, s in program.symbols.items()}
    context = min(context_len, _limit(limits, WIDTH) * page_size)
    if needs_context and context < context_len:
        raise OptionError(
            f"a context of {context_len} tokens is more than the program was compiled for",
            facts=f"its page tables hold {context} tokens",
        )
    pages_of_one = -(-context // page_size)
    # a CPU uses arrays where they lie; those that are computed when looked up lie nowhere yet
    in_place = device.kind == "cpu" and not isinstance(weights, LazyArrays)
    weight_bytes = 0 if in_place else _weight_bytes(weights, program)
    free = device.free_bytes()
    for seqs, tokens in CPU_LIMITS if device.kind == "cpu" else GPU_LIMITS:
        seqs, tokens = max_num_seqs or seqs, max_num_batched_tokens or tokens
        num_seqs = min(seqs, _limit(limits, NUM_SEQS), _limit(limits, NUM_ROWS))
        num_tokens = min(max(tokens, num_seqs), _limit(limits, NUM_TOKENS))
        num_seqs = min(num_seqs, num_tokens)
        largest = {NUM_TOKENS: num_tokens, NUM_SEQS: num_seqs, NUM_ROWS: num_seqs}
        arena_bytes = _arena_bytes(program, {**largest, WIDTH: pages_of_one, NUM_PAGES: 1})
        if arena_bytes <= ARENA_SHARE * (free - weight_bytes):
            break
    taken = weight_bytes + arena_bytes
    if kv_bytes is not None:
        allowed, num_pages = free, kv_bytes // page_bytes
    else:
        allowed = int(free * (CPU_SHARE if device.kind == "cpu" else GPU_SHARE))
        pool_seqs = num_seqs if max_num_seqs is not None else min(num_seqs, POOL_SEQS)
        num_pages = min(pool_seqs * pages_of_one, (allowed - taken) // page_bytes)
    num_pages = min(num_pages, _limit(limits, NUM_PAGES))
    least = pages_of_one if needs_context else 1
    if kv_bytes is not None and num_pages < least:
        raise OutOfMemory(
            "the KV pool that was asked for is too small",
            facts=f"needed: {least * page_bytes:,} bytes for {least} pages of {page_size} tokens;"
            f" available: the {kv_bytes:,} bytes asked for",
            fix="ask for a larger pool, or a shorter context",
        )
    pool_bytes = max(num_pages, least) * page_bytes
    if num_pages < least or taken + pool_bytes > allowed:
        raise OutOfMemory(
            "the model does not fit into memory",
            where=device.name,
            facts=f"needed: {taken + pool_bytes:,} bytes ({taken:,} for weights and temporary"
            f" buffers, {pool_bytes:,} for keys and values); available: {allowed:,} of"
            f" {free:,} free bytes",
            fix="use a shorter context, a smaller KV pool, fewer tokens a step",
        )
    context = min(context, num_pages * page_size)
    return MemoryPlan(
        num_pages, page_bytes, weight_bytes, arena_bytes, free, context, num_seqs, num_tokens
    )


def _arena_bytes(program: Program, values: Mapping[str, int]) -> int:
    missing = symbols_of(program.arena_bytes) - values.keys()
    assert not missing, f"a serving program has no symbols {', '.join(sorted(missing))}"
    return Dims(program, [program.arena_bytes]).numbers(values)[0]


def _limit(limits: Mapping[str, int | None], name: str) -> int:
    value = limits.get(name)
    return 1 << 40 if value is None else value


def _weight_bytes(weights: Mapping[str, Any], program: Program) -> int:
    return LazyArrays.of(weights, [buffer.name for buffer in program.weights]).nbytes


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"
