"""Batch: the arrays that tell a paged program what one step computes."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
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
    rows = sum([w.wants_token for w in work])
    rows += sum([len(w.scored) for w in work if w.sequence.params.prompt_logprobs is not None])
    tokens = sum([w.count for w in work])
    return BatchSizes(tokens, len(work), -(-longest // page_size), max(1, rows))


def make_batch(
    work: Seq[Work], page_size: int, sizes: BatchSizes | None = None, *, samples: bool = False
) -> Batch:
    """Lay the work's new tokens end to end. `sizes` says what to pad to.

    Padding is inert: its tokens have no slot and belong to no sequence, its sequences have no
    tokens, its logit rows repeat token 0's. With `samples` come the arrays that a program that
    samples takes; tokens that are not known yet have their `source` among them. `chosen` is one
    token, which none is read from where all are known.
    """
    sizes = sizes or sizes_of(work, page_size)
    sequences = [w.sequence for w in work]
    counts = np.array([w.count for w in work])
    ends = np.cumsum(counts)
    num_tokens = int(ends[-1])
    ids = np.zeros((1, sizes.tokens), np.int64)
    positions, prompts = np.zeros((2, 1, sizes.tokens), np.int64)
    starts = np.full(sizes.seqs + 1, num_tokens, np.int32)
    lens = np.zeros(sizes.seqs, np.int32)
    slots = np.full(sizes.tokens, -1, np.int32)
    rows = np.zeros(sizes.rows, np.int32)
    sources = np.full((1, sizes.tokens), -1, np.int32)
    firsts = np.array([s.num_computed for s in sequences])
    lens[: len(work)] = firsts + counts
    starts[0], starts[1 : len(work) + 1] = 0, ends
    table = _page_table(sequences, sizes)
    if num_tokens == len(work):  # a pure decode step: one new token each
        owner, where = np.arange(len(work)), firsts
    else:
        owner = np.repeat(np.arange(len(work)), counts)
        where = np.arange(num_tokens) - (ends - counts - firsts)[owner]
    ids[0, :num_tokens] = _tokens(work)
    positions[0, :num_tokens] = where
    prompts[0, :num_tokens] = np.array([len(s.prompt) for s in sequences])[owner]
    slots[:num_tokens] = table[owner, where // page_size] * page_size + where % page_size
    # the last of those that are computed now: nothing else can be unknown
    awaited = [i for i, s in enumerate(sequences) if s.num_awaited]
    sources[0, ends[awaited] - 1] = [sequences[i].source for i in awaited]
    asking = [i for i, w in enumerate(work) if w.wants_token]
    rows[: len(asking)] = ends[asking] - 1
    wanting = [sequences[i] for i in asking]
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
        arrays |= {layout.SOURCES: sources, layout.CHOSEN: np.full(1, -1, np.int32)}
    scored = tuple((sequences[i], place) for i, place in places)
    return Batch(arrays, tuple(wanting), sizes, scored)


def _page_table(sequences: Seq[Sequence], sizes: BatchSizes) -> np.ndarray:
    """[seqs, width]: what is beyond the pages of a sequence is never read."""
    table = np.zeros((sizes.seqs, sizes.width), np.int32)
    for sequence in sequences:
        if len(sequence.page_row) < sizes.width:
            sequence.widen_row(sizes.width)
    rows = [s.page_row[: sizes.width] for s in sequences]
    np.concatenate(rows, out=table[: len(sequences)].reshape(-1))
    return table


def _tokens(work: Seq[Work]) -> list[int]:
    """The new tokens, 0 for one that is not known yet."""
    if all(w.count == 1 and w.wants_token for w in work):
        return [0 if w.sequence.num_awaited else w.sequence.tokens[-1] for w in work]
    tokens: list[int] = []
    for item in work:
        sequence, first = item.sequence, item.sequence.num_computed
        known = sequence.tokens[first : first + item.count]
        tokens += known
        if len(known) < item.count:
            tokens.append(0)
    return tokens


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
    drawn = [
        (row, s, s.params)
        for row, s in enumerate(wanting)
        if s.params.is_plain and not s.params.is_greedy
    ]
    if drawn:
        at = [row for row, _, _ in drawn]
        arrays[layout.TEMPERATURE][at] = [p.temperature for _, _, p in drawn]
        arrays[layout.TOP_K][at] = [min(p.top_k, 2**31 - 1) for _, _, p in drawn]
        arrays[layout.TOP_P][at] = [p.top_p for _, _, p in drawn]
        arrays[layout.SEED][at] = [s.seed for _, s, _ in drawn]
        arrays[layout.STEP][at] = [s.num_ahead - len(s.prompt) for _, s, _ in drawn]
    return arrays
