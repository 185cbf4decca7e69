"""Running a paged program on batches: the only place where the engine meets an executable."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from ...ir import layout
from ..device import Done, Memory
from ..executable import Executable
from ..fixed_run import FixedRun, SharedMemory
from .batch import Batch, BatchSizes, make_batch, sizes_of
from .scheduler import Work
from .scores import Scorer, TokenScores
from .sequence import Sequence

WIDTH_STEP = 8  # columns of the page table are padded to a multiple, so that sizes seldom change
MAX_CAPTURED_TOKENS = 512  # a longer prefill takes far longer than its launches: not captured
SEQ_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
TOKEN_BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
WIDTH_BUCKETS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

T = TypeVar("T")


@dataclass(frozen=True)
class StepResult:
    """What a step computed. The functions wait for the device; row i is of batch.wanting[i]."""

    batch: Batch
    tokens: Callable[[], np.ndarray]  # chosen for each row, integers [rows]; see ProgramRunner
    logits: Callable[[], np.ndarray]  # f32 [rows, V], until the next step begins
    scores: Callable[[], TokenScores] | None = (
        None  # where they were asked for, and the device has them
    )


class ProgramRunner:
    """Runs batches at their own sizes (CPU), or padded to buckets with captured launches (GPU).

    Where it `samples`, tokens are those of the op `sample`, -1 where no logit is the largest; else
    the engine chooses. Where it `overlaps`, a step may begin before the tokens of the step before
    are read: those it needs are taken on the device. They may be read until the step after the
    next begins.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        captures: bool | None = None,
        scores: Executable | None = None,
    ):
        self.executable, self._scores = executable, scores
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
        self._inputs, self._outputs = program.inputs, program.outputs
        self.samples = layout.TEMPERATURE in program.inputs
        self._captures = executable.device.kind != "cpu" if captures is None else captures
        # faults of the data are read from the device, which would wait for a step begun since
        takes_chosen = self.samples and layout.SOURCES in program.inputs
        self.overlaps = self._captures and takes_chosen and not program.checks
        self._prepared: dict[BatchSizes, FixedRun] = {}
        self._shared = SharedMemory(executable.device)
        self._num_kept = 1
        self._placed: dict[str, Memory] = {}
        self._read: tuple[np.ndarray, ...] = ()  # tokens of the last two steps, taken in turn
        self._scorer: Scorer | None = None

    def reserve(self, max_tokens: int, max_seqs: int, context_len: int) -> None:
        """Make the arena large enough for every step, so that it never moves under a capture."""
        sizes = BatchSizes(max_tokens, max_seqs, -(-context_len // self.page_size), max_seqs)
        sizes = self.bucket(sizes) if self._captures else self._widened(sizes)
        values = {
            layout.NUM_TOKENS: sizes.tokens,
            layout.NUM_SEQS: sizes.seqs,
            layout.WIDTH: sizes.width,
            layout.NUM_ROWS: sizes.rows,
            layout.NUM_KEPT: sizes.rows,
        }
        self.executable.reserve(values)
        if self.overlaps:  # what a step chooses is where the next one looks for it
            device, nbytes = self.executable.device, sizes.rows * np.dtype(np.int32).itemsize
            memory = device.allocate(nbytes, "tokens of a step", zero=True)
            self._placed = dict.fromkeys((layout.CHOSEN, self._outputs[1]), memory)
            self._num_kept = sizes.rows
            self._read = tuple(device.host_memory(nbytes).view(np.int32) for _ in range(2))
            if self._scores is not None:
                nbytes = sizes.rows * self.vocab_size * np.dtype(np.float32).itemsize
                logits = self._placed[self._outputs[0]] = device.allocate(nbytes, "logits")
                self._scorer = Scorer(self._scores, logits, memory, sizes.rows)

    def run(self, work: Seq[Work]) -> StepResult:
        """Compute the next tokens of `work`."""
        least = sizes_of(work, self.page_size)
        sizes = self.bucket(least) if self._captures else self._widened(least)
        batch = make_batch(work, self.page_size, sizes, samples=self.samples)
        if self._captures:
            return self._run_prepared(batch)
        arrays = [batch.arrays[name] for name in self._inputs]
        logits, tokens = self.executable(*arrays)[:2]
        return StepResult(batch, tokens.numpy, logits.numpy)

    def _run_prepared(self, batch: Batch) -> StepResult:
        prepared = self._prepared.get(batch.sizes)
        if prepared is None:
            prepared = self._prepared[batch.sizes] = self._prepare(batch)
        prepared.run(batch.arrays)
        logits = lambda: prepared.output(0)  # noqa: E731
        if not self.overlaps:
            return StepResult(batch, lambda: prepared.output(1), logits)
        self._read = self._read[1], self._read[0]
        tokens = self._read[0][: batch.sizes.rows]
        done = prepared.fetch(1, tokens)
        scores = self._begin_scores(batch)
        return StepResult(batch, lambda: _after(done, tokens), logits, scores)

    def _begin_scores(self, batch: Batch) -> Callable[[], TokenScores] | None:
        if self._scorer is None or not (batch.scored or any(map(_asks, batch.wanting))):
            return None
        targets = [-1] * len(batch.wanting) + [s.prompt[place + 1] for s, place in batch.scored]
        done, scores = self._scorer.begin(batch.sizes.rows, targets)
        return lambda: _after(done, scores)

    def _prepare(self, batch: Batch) -> FixedRun:
        shapes = [batch.arrays[name].shape for name in self._inputs]
        if self.overlaps:
            shapes[self._inputs.index(layout.CHOSEN)] = (self._num_kept,)
        return FixedRun(
            self.executable,
            shapes,
            self._shared,
            placed=self._placed,
            captures=batch.sizes.tokens <= MAX_CAPTURED_TOKENS,
        )

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


def _asks(sequence: Sequence) -> bool:
    """Whether its next token is told with log-probabilities, or chosen among the likeliest."""
    params = sequence.params
    is_early = params.min_tokens > 0 and sequence.num_output < params.min_tokens
    is_changed = params.changes_logits or is_early
    return params.logprobs is not None or (is_changed and params.only_lowers)


def _after(done: Done, value: T) -> T:
    """The value, once it is there."""
    done()
    return value


@lru_cache(maxsize=4096)
def round_up(value: int, buckets: tuple[int, ...]) -> int:
    """The least bucket that holds `value`; multiples of the last one above it."""
    for bucket in buckets:
        if value <= bucket:
            return bucket
    return -(-value // buckets[-1]) * buckets[-1]
