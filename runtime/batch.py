"""Batch: the arrays that tell a paged program what one step computes."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from ..ir import layout
from .scheduler import Work
from .sequence import Sequence

INPUT_IDS, POSITION_IDS = "input_ids", "position_ids"


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch's arrays: new tokens, sequences, columns of the page table, logit rows."""

    tokens: int
    seqs: int
    width: int
    rows: int


@dataclass(frozen=True)
class Batch:
    """Arrays by the program's names, and whose tokens the logit rows decide, in order."""

    arrays: dict[str, np.ndarray]
    wanting: tuple[Sequence, ...]  # row i is of wanting[i]; padded rows come after
    sizes: Sizes


def sizes_of(work: Seq[Work], page_size: int) -> Sizes:
    """The least sizes that hold `work`. One row at least: programs have no empty dims."""
    return Sizes(
        sum(w.count for w in work),
        len(work),
        max(-(-(w.sequence.num_computed + w.count) // page_size) for w in work),
        max(1, sum(w.wants_token for w in work)),
    )


def make_batch(work: Seq[Work], page_size: int, sizes: Sizes | None = None) -> Batch:
    """Lay the work's new tokens end to end. `sizes` says what to pad to.

    Padding is inert: its tokens have no slot and belong to no sequence, its sequences have no
    tokens, its logit rows repeat token 0's.
    """
    sizes = sizes or sizes_of(work, page_size)
    num_tokens = sum(w.count for w in work)
    ids = np.zeros((1, sizes.tokens), np.int64)
    positions = np.zeros((1, sizes.tokens), np.int64)
    slots = np.full(sizes.tokens, -1, np.int32)
    table = np.zeros((sizes.seqs, sizes.width), np.int32)
    starts = np.full(sizes.seqs + 1, num_tokens, np.int32)
    lens = np.zeros(sizes.seqs, np.int32)
    rows = np.zeros(sizes.rows, np.int32)
    wanting: list[Sequence] = []
    at = 0
    for index, item in enumerate(work):
        sequence, first = item.sequence, item.sequence.num_computed
        last, stop = first + item.count, at + item.count
        ids[0, at:stop] = sequence.tokens[first:last]
        where = np.arange(first, last)
        positions[0, at:stop] = where
        pages = np.array(sequence.pages[: -(-last // page_size)], np.int32)
        table[index, : len(pages)] = pages
        slots[at:stop] = pages[where // page_size] * page_size + where % page_size
        starts[index], lens[index] = at, last
        if item.wants_token:
            rows[len(wanting)] = stop - 1
            wanting.append(sequence)
        at = stop
    arrays = {
        INPUT_IDS: ids,
        POSITION_IDS: positions,
        layout.SLOTS: slots,
        layout.PAGE_TABLE: table,
        layout.QUERY_STARTS: starts,
        layout.CONTEXT_LENS: lens,
        layout.LOGIT_ROWS: rows,
    }
    return Batch(arrays, tuple(wanting), sizes)
