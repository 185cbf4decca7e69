"""Running a paged program on batches: the only place where the engine meets an executable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...ir import layout
from ..executable import Executable
from ..fixed_run import FixedRun, SharedMemory
from .batch import Batch, BatchSizes, make_batch, sizes_of
from .scheduler import Work

WIDTH_STEP = 8  # columns of the page table are padded to a multiple, so that sizes seldom change
MAX_CAPTURED_TOKENS = 512  # a longer prefill takes far longer than its launches: not captured
SEQ_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
TOKEN_BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
WIDTH_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class StepResult:
    """What a step computed. Both functions wait for the device; row i is of batch.wanting[i]."""

    batch: Batch
    tokens: Callable[[], np.ndarray]  # chosen for each row, integers [rows]; see ProgramRunner
    logits: Callable[[], np.ndarray]  # f32 [rows, V]


class ProgramRunner:
    """Runs batches at their own sizes (CPU), or padded to buckets with captured launches (GPU).

    Where it `samples`, tokens are those of the op `sample`, -1 where no logit is the largest; else
    the engine chooses.
    """

    def __init__(self, executable: Executable, *, captures: bool | None = None):
        self.executable = executable
        program = executable.program
        assert program.kv is not None, "a program without KV layout serves no sequences"
        self.page_size = program.kv.page_size
        self.num_pages = executable.sizes[layout.NUM_PAGES]
        vocab_size = program.buffers[program.outputs[0]].type.shape[-1]
        assert isinstance(vocab_size, int), "a model knows its vocabulary"
        self.vocab_size = vocab_size
        symbols = program.symbols
        self._limits = {
            name: symbols[name].hi
            for name in (layout.NUM_TOKENS, layout.NUM_SEQS, layout.WIDTH, layout.NUM_ROWS)
        }
        self._inputs = program.inputs
        self.samples = layout.TEMPERATURE in program.inputs
        self._captures = executable.device.kind != "cpu" if captures is None else captures
        self._prepared: dict[BatchSizes, FixedRun] = {}
        self._shared = SharedMemory(executable.device)

    def reserve(self, max_tokens: int, max_seqs: int, context_len: int) -> None:
        """Make the arena large enough for every step, so that it never moves under a capture."""
        sizes = BatchSizes(max_tokens, max_seqs, -(-context_len // self.page_size), max_seqs)
        sizes = self.bucket(sizes) if self._captures else self._widened(sizes)
        values = {
            layout.NUM_TOKENS: sizes.tokens,
            layout.NUM_SEQS: sizes.seqs,
            layout.WIDTH: sizes.width,
            layout.NUM_ROWS: sizes.rows,
        }
        self.executable.reserve(values)

    def run(self, work: Sequence[Work]) -> StepResult:
        """Compute the next tokens of `work`."""
        least = sizes_of(work, self.page_size)
        sizes = self.bucket(least) if self._captures else self._widened(least)
        batch = make_batch(work, self.page_size, sizes, samples=self.samples)
        if self._captures and sizes.tokens <= MAX_CAPTURED_TOKENS:
            return self._replay(batch)
        arrays = [batch.arrays[name] for name in self._inputs]
        logits, tokens = self.executable(*arrays)[:2]
        return StepResult(batch, tokens.numpy, logits.numpy)

    def _replay(self, batch: Batch) -> StepResult:
        prepared = self._prepared.get(batch.sizes)
        if prepared is None:
            shapes = [batch.arrays[name].shape for name in self._inputs]
            prepared = self._prepared[batch.sizes] = FixedRun(self.executable, shapes, self._shared)
        prepared.run(batch.arrays)
        return StepResult(batch, lambda: prepared.output(1), lambda: prepared.output(0))

    def _widened(self, least: BatchSizes) -> BatchSizes:
        width = -(-least.width // WIDTH_STEP) * WIDTH_STEP
        return BatchSizes(least.tokens, least.seqs, self._cap(layout.WIDTH, width), least.rows)

    def bucket(self, least: BatchSizes) -> BatchSizes:
        """The padded sizes that a batch of these sizes runs at."""
        seqs = self._cap(layout.NUM_SEQS, round_up(least.seqs, SEQ_BUCKETS))
        # a pure decode step stays one: as many tokens as sequences
        is_decode = least.tokens == least.seqs
        tokens = (
            seqs
            if is_decode
            else self._cap(layout.NUM_TOKENS, round_up(least.tokens, TOKEN_BUCKETS))
        )
        # more rows than sequences only where prompts are scored
        rows = self._cap(layout.NUM_ROWS, round_up(max(seqs, least.rows), SEQ_BUCKETS))
        width = self._cap(layout.WIDTH, round_up(least.width, WIDTH_BUCKETS))
        return BatchSizes(tokens, seqs, width, rows)

    def _cap(self, name: str, value: int) -> int:
        limit = self._limits[name]
        return value if limit is None else min(value, limit)


@lru_cache(maxsize=4096)
def round_up(value: int, buckets: tuple[int, ...]) -> int:
    """The least bucket that holds `value`; multiples of the last one above it."""
    for bucket in buckets:
        if value <= bucket:
            return bucket
    return -(-value // buckets[-1]) * buckets[-1]
