"""Batch: the arrays that tell a paged program what one step computes."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...ir import layout
from .scheduler import Work
from .sequence import Sequence


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of a batch's arrays: new tokens, sequences, columns of the page table, logit rows."""

    tokens: int
    seqs: int
    width: int
    rows: int


@dataclass(frozen=True)
class Batch:
    """Arrays by the program's names, and whose tokens the logit rows decide, in order.

    The rows after those are of places of prompts that are scored: (sequence, place) each.
    """

    arrays: dict[str, np.ndarray]
    wanting: tuple[Sequence, ...]  # row i is of wanting[i]; padded rows come after
    sizes: BatchSizes
    scored: tuple[tuple[Sequence, int], ...] = ()


def sizes_of(work: Seq[Work], page_size: int) -> BatchSizes:
    """The least sizes that hold `work`. One row at least: programs have no empty dims."""
    longest = max([w.sequence.num_computed + w.count for w in work])
    return BatchSizes(
        sum([w.count for w in work]),
        len(work),
        -(-longest // page_size),
        max(1, sum([w.wants_token + len(w.scored) for w in work])),
    )


def make_batch(
    work: Seq[Work], page_size: int, sizes: BatchSizes | None = None, *, samples: bool = False
) -> Batch:
    """Lay the work's new tokens end to end. `sizes` says what to pad to.

    Padding is inert: its tokens have no slot and belong to no sequence, its sequences have no
    tokens, its logit rows repeat token 0's. With `samples` come the arrays that a program that
    samples takes.
    """
    sizes = sizes or sizes_of(work, page_size)
    num_tokens = sum([w.count for w in work])
    ids = np.zeros((1, sizes.tokens), np.int64)
    positions, prompts = np.zeros((2, 1, sizes.tokens), np.int64)
    table = np.zeros((sizes.seqs, sizes.width), np.int32)
    starts = np.full(sizes.seqs + 1, num_tokens, np.int32)
    lens = np.zeros(sizes.seqs, np.int32)
    slots = np.full(sizes.tokens, -1, np.int32)
    rows = np.zeros(sizes.rows, np.int32)
    firsts = [w.sequence.num_computed for w in work]
    counts = [w.count for w in work]
    lasts = np.array(firsts, np.int32) + np.array(counts, np.int32)
    lens[: len(work)] = lasts
    starts[1 : len(work) + 1] = np.cumsum(counts)
    starts[0] = 0
    for index, pages in enumerate([w.sequence.page_row for w in work]):
        table[index, : len(pages)] = pages[: sizes.width]
    if num_tokens == len(work):  # a pure decode step: one new token each
        where = np.array(firsts, np.int64)
        ids[0, :num_tokens] = [w.sequence.tokens[first] for w, first in zip(work, firsts)]
        owner = np.arange(len(work))
    else:
        where = np.concatenate([np.arange(f, f + c) for f, c in zip(firsts, counts)])
        pieces = [w.sequence.tokens[f : f + c] for w, f, c in zip(work, firsts, counts)]
        ids[0, :num_tokens] = list(chain.from_iterable(pieces))
        owner = np.repeat(np.arange(len(work)), counts)
    positions[0, :num_tokens] = where
    prompts[0, :num_tokens] = np.array([len(w.sequence.prompt) for w in work])[owner]
    slots[:num_tokens] = table[owner, where // page_size] * page_size + where % page_size
    asking = [i for i, w in enumerate(work) if w.wants_token]
    rows[: len(asking)] = starts[1:][asking] - 1
    wanting = [work[i].sequence for i in asking]
    places: list[tuple[int, int]] = []
    if sizes.rows > len(asking):  # else there is no room for any, and this is every decode step
        places = [(i, place) for i, w in enumerate(work) for place in w.scored]
        more = [starts[i] + place - firsts[i] for i, place in places]
        rows[len(asking) : len(asking) + len(more)] = more
    arrays: dict[str, np.ndarray] = {
        layout.INPUT_IDS: ids,
        layout.POSITION_IDS: positions,
        layout.LENGTHS: np.maximum(positions + 1, prompts),
        layout.SLOTS: slots,
        layout.PAGE_TABLE: table,
        layout.QUERY_STARTS: starts,
        layout.CONTEXT_LENS: lens,
        layout.LOGIT_ROWS: rows,
    }
    if samples:
        arrays |= _sampling(wanting, sizes.rows)
    scored = tuple((work[i].sequence, place) for i, place in places)
    return Batch(arrays, tuple(wanting), sizes, scored)


def _sampling(wanting: Seq[Sequence], rows: int) -> dict[str, np.ndarray]:
    """Parameters of each row. Padding is greedy; so are rows whose logits the engine looks at."""
    names: dict[str, Any] = {
        layout.TEMPERATURE: np.float32,
        layout.TOP_K: np.int32,
        layout.TOP_P: np.float32,
        layout.SEED: np.int64,
        layout.STEP: np.int64,
    }
    arrays = {name: np.zeros(rows, dtype) for name, dtype in names.items()}
    arrays[layout.TOP_P][:] = 1
    for row, sequence in enumerate(wanting):
        params = sequence.params
        if params.is_plain and not params.is_greedy:
            arrays[layout.TEMPERATURE][row] = params.temperature
            arrays[layout.TOP_K][row] = min(params.top_k, 2**31 - 1)
            arrays[layout.TOP_P][row] = params.top_p
            arrays[layout.SEED][row] = sequence.seed
            arrays[layout.STEP][row] = sequence.num_output
    return arrays
