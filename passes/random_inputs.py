"""Small random inputs for any graph: what the differential check and tests run the reference on."""

from collections.abc import Mapping
from zlib import crc32

import numpy as np

from ..ir.dim import evaluate as evaluate_dim
from ..ir.graph import Graph, Value
from ..ir.layout import (
    CHOSEN,
    CONTEXT_LENS,
    LOGIT_ROWS,
    NUM_KEPT,
    NUM_PAGES,
    NUM_ROWS,
    NUM_SEQS,
    PAGE_TABLE,
    QUERY_STARTS,
    SEED,
    SLOTS,
    SOURCES,
    STEP,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    WIDTH,
)

# what integers are drawn from: as indices, 0 and 1 are in range in nearly every graph
WHOLE = range(2)
LARGEST = 7  # an odd size for every symbol without an upper bound


def bindings(graph: Graph) -> list[dict[str, int]]:
    """Values for the symbols: each at its least, at a small odd size, at its bound when small."""
    least, odd, most = {}, {}, {}
    for s in graph.symbols.values():
        step = s.multiple
        low = -(-s.lo // step) * step
        high = low + LARGEST * step if s.hi is None else s.hi // step * step
        least[s.name] = low
        odd[s.name] = min(-(-max(s.lo, 5) // step) * step, high)
        most[s.name] = min(high, low + LARGEST * step)
    found = [least, odd, most]
    return [_with_room(graph, b) for b in found] if is_paged(graph) else found


def random_weights(
    graph: Graph, seed: int, scale: float = 1.0, whole: range = WHOLE
) -> dict[str, np.ndarray]:
    """Standard-normal weights (those of `whole` for integer ones)."""
    return {v.name or "": _random(v, {}, scale, seed, whole) for v in graph.weights}


def random_arguments(
    graph: Graph, binding: Mapping[str, int], scale: float, seed: int, whole: range = WHOLE
) -> dict[str, np.ndarray]:
    """Inputs and states, integers from `whole`; a paged program's metadata is made consistent."""
    arrays = {
        v.name or "": _random(v, binding, scale, seed + 1, whole)
        for v in (*graph.inputs, *graph.states)
    }
    if is_paged(graph):
        arrays.update(random_batch(np.random.default_rng(seed + 1), graph, binding))
    return arrays


def _random(
    value: Value, binding: Mapping[str, int], scale: float, seed: int, whole: range
) -> np.ndarray:
    """The same numbers under one name whatever else the graph has: parts of it are compared too."""
    rng = np.random.default_rng((seed, crc32((value.name or "").encode())))
    return random_array(rng, value, binding, scale, whole)


def random_array(
    rng: np.random.Generator,
    value: Value,
    binding: Mapping[str, int],
    scale: float,
    whole: range,
) -> np.ndarray:
    """An array of the value's type."""
    shape = [evaluate_dim(d, binding) for d in value.shape]
    if value.dtype.is_float:
        return np.asarray(rng.standard_normal(shape) * scale).astype(value.dtype.numpy)
    return np.asarray(rng.integers(whole.start, whole.stop, shape)).astype(value.dtype.numpy)


# ---- batches of paged programs -------------------------------------------------------------


def is_paged(graph: Graph) -> bool:
    """Whether the graph takes the metadata of a batch (see ir/layout.py)."""
    names = {v.name for v in graph.inputs}
    return {SLOTS, PAGE_TABLE, QUERY_STARTS, CONTEXT_LENS} <= names


def _page_size(graph: Graph) -> int:
    pools = (s for s in graph.states if s.type.rank == 4 and str(s.shape[0]) == NUM_PAGES)
    return next(int(s.shape[2]) for s in pools)  # type: ignore[arg-type]


def _with_room(graph: Graph, binding: Mapping[str, int]) -> dict[str, int]:
    """Sizes at which every sequence has pages for its tokens."""
    tokens = max(v for v in binding.values())
    width = -(-tokens // _page_size(graph)) + 1
    sizes = {**binding, WIDTH: width}
    return {**sizes, NUM_PAGES: sizes.get(NUM_SEQS, 1) * width}


def random_batch(
    rng: np.random.Generator, graph: Graph, binding: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """A mix of sequences: new tokens dealt out at random, some cached before, pages shuffled."""
    page_size = _page_size(graph)
    (slots,) = (v for v in graph.inputs if v.name == SLOTS)
    tokens = evaluate_dim(slots.shape[0], binding)
    seqs, width = binding[NUM_SEQS], binding[WIDTH]
    counts = np.bincount(rng.integers(0, seqs, tokens), minlength=seqs)
    room = width * page_size - counts
    context = counts + rng.integers(0, np.minimum(room, page_size) + 1)
    table = rng.permutation(binding[NUM_PAGES])[: seqs * width].reshape(seqs, width)
    places = [
        table[s, at // page_size] * page_size + at % page_size
        for s in range(seqs)
        for at in range(context[s] - counts[s], context[s])
    ]
    starts = np.concatenate([[0], np.cumsum(counts)])
    batch = {SLOTS: places, PAGE_TABLE: table, QUERY_STARTS: starts, CONTEXT_LENS: context}
    if NUM_ROWS in binding:
        rows = binding[NUM_ROWS]
        batch |= {
            LOGIT_ROWS: rng.integers(0, tokens, rows),
            TEMPERATURE: rng.choice([0.0, 0.7, 1.0, 1.5], rows),
            TOP_K: rng.integers(0, 8, rows),
            TOP_P: rng.choice([0.5, 0.9, 1.0], rows),
            SEED: rng.integers(0, 2**40, rows),
            STEP: rng.integers(0, 100, rows),
        }
    if NUM_KEPT in binding:
        kept = binding[NUM_KEPT]
        batch |= {
            SOURCES: rng.integers(-1, kept, (1, tokens)),
            CHOSEN: rng.integers(-1, WHOLE.stop, kept),
        }
    types = {v.name: v.dtype.numpy for v in graph.inputs}
    return {n: np.asarray(a).astype(types[n]) for n, a in batch.items() if n in types}
