"""How likely tokens were, computed where logits lie: see api/token_scores.py."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from ...ir import layout
from ..device import Done, Memory
from ..executable import Executable
from ..fixed_run import FixedRun, SharedMemory
from .sampler import SampledToken, choose_of_largest
from .sequence import Sequence


@dataclass(frozen=True)
class TokenScores:
    """Of each row: the largest logits and their tokens, the logarithm of all weights, a logit."""

    best: np.ndarray  # f32 [R, K], in order
    tokens: np.ndarray  # i32 [R, K]
    total: np.ndarray  # f32 [R]
    own: np.ndarray  # f32 [R], of the token asked for

    def top(self, row: int, count: int, token: int) -> dict[int, float]:
        """As `log_probabilities`: `token` is the one whose logit was asked for."""
        found = self._likeliest(row, count)
        found.setdefault(token, float(self.own[row]) - float(self.total[row]))
        return found

    def choose(
        self, row: int, sequence: Sequence, forbidden: frozenset[int]
    ) -> SampledToken | None:
        """As the sampler's `choose`; None where the largest logits do not decide it."""
        token = choose_of_largest(self.best[row], self.tokens[row], sequence, forbidden)
        count = sequence.params.logprobs
        if token is None or count is None:
            return None if token is None else SampledToken(token)
        (place,) = np.flatnonzero(self.tokens[row] == token)
        value = float(self.best[row, place]) - float(self.total[row])
        found = self._likeliest(row, count)
        found.setdefault(token, value)
        return SampledToken(token, value, found)

    def _likeliest(self, row: int, count: int) -> dict[int, float]:
        total, best = float(self.total[row]), self.best[row, :count].tolist()
        return {t: x - total for t, x in zip(self.tokens[row, :count].tolist(), best)}


class Scorer:
    """Runs the program behind a step. Its results are good until the step after the next."""

    def __init__(self, executable: Executable, logits: Memory, chosen: Memory, max_rows: int):
        self._executable = executable
        self._placed = {layout.LOGITS: logits, layout.CHOSEN: chosen}
        self._prepared: dict[int, FixedRun] = {}
        self._shared = SharedMemory(executable.device)
        executable.reserve({layout.NUM_ROWS: max_rows})
        buffers = executable.program.buffers
        self._types = [buffers[name].type for name in executable.program.outputs]
        widths = [int(np.prod(t.shape[1:], dtype=np.int64)) for t in self._types]
        device = executable.device
        self._read = [  # in turn, as what is read of one step may be while the next one runs
            [
                device.host_memory(max_rows * w * t.dtype.nbytes).view(t.dtype.numpy)
                for w, t in zip(widths, self._types)
            ]
            for _ in range(2)
        ]

    def begin(self, rows: int, targets: Seq[int]) -> tuple[Done, TokenScores]:
        """Score the rows of the step launched last. The scores are there once `Done` returns."""
        prepared = self._prepared.get(rows)
        if prepared is None:
            inputs = self._executable.program.inputs
            vocab_size = self._executable.program.buffers[layout.LOGITS].type.shape[1]
            shapes = [(rows, vocab_size) if n == layout.LOGITS else (rows,) for n in inputs]
            prepared = FixedRun(self._executable, shapes, self._shared, placed=self._placed)
            self._prepared[rows] = prepared
        wanted = np.full(rows, -1, np.int32)
        wanted[: len(targets)] = targets
        prepared.run({layout.TARGETS: wanted})
        self._read.reverse()
        arrays = []
        for index, (memory, type_) in enumerate(zip(self._read[0], self._types)):
            array = memory[: rows * int(np.prod(type_.shape[1:], dtype=np.int64))]
            arrays.append(array.reshape(rows, *type_.shape[1:]))
            done = prepared.fetch(index, arrays[-1])
        return done, TokenScores(*arrays)
