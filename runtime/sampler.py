"""Choosing tokens from logits with NumPy: the op `sample`, and what it leaves out.

Without penalties and the like a choice is the one of the op's reference, token for token; a test
holds that.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..ir.ops.sampling import gumbel
from .sampling import SamplingParams
from .sequence import Sequence


@dataclass(frozen=True)
class Choice:
    """A chosen token. Log-probabilities are of the model's own distribution, at temperature 1."""

    token: int
    logprob: float | None = None  # None unless asked for
    top: dict[int, float] | None = None


def choose(
    logits: np.ndarray, sequence: Sequence, forbidden: frozenset[int] = frozenset()
) -> Choice:
    """The next token of `sequence`. logits: f32 [V], not changed; `forbidden` cannot be chosen."""
    params = sequence.params
    changed = logits
    if params.changes_logits or forbidden:
        changed = adjust(logits, sequence, forbidden)
    token = draw(changed, params, sequence.seed, sequence.num_output)
    if params.logprobs is None:
        return Choice(token)
    top = log_probabilities(logits, params.logprobs, token)
    return Choice(token, top[token], top)


def draw(logits: np.ndarray, params: SamplingParams, seed: int, step: int) -> int:
    """One token from softmax(logits / temperature), cut to top_k, top_p and min_p."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    # the division is made in float32 and all after it in float64, as the op's reference does
    scaled = (logits / np.float32(params.temperature)).astype(np.float64)
    keep = None
    if 0 < params.top_k < len(scaled):
        keep = np.flatnonzero(scaled >= np.partition(scaled, -params.top_k)[-params.top_k])
    if params.top_p < 1 or params.min_p > 0:
        keep = _cut_tail(scaled, keep, np.float32(params.top_p), params.min_p)
    noise = gumbel(seed, step, len(scaled))
    if keep is None:
        return int(np.argmax(scaled + noise))
    return int(keep[np.argmax(scaled[keep] + noise[keep])])


def _cut_tail(
    scaled: np.ndarray, keep: np.ndarray | None, top_p: np.float32, min_p: float
) -> np.ndarray:
    weights = np.exp(scaled - scaled.max())
    if keep is not None:
        only = np.zeros_like(weights)
        only[keep] = weights[keep]
        weights = only
    least = min_p * weights.max()
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        reached = np.cumsum(weights[order]) >= top_p * weights.sum()
        least = max(least, weights[order][np.argmax(reached)])
    # a weight of 0 that `keep` admits (a logit far below) stays out unless the cut itself is 0
    inside = weights >= least
    if keep is None:
        return np.flatnonzero(inside)
    return keep[inside[keep]]


def adjust(logits: np.ndarray, sequence: Sequence, forbidden: frozenset[int]) -> np.ndarray:
    """Logits after penalties, biases and exclusions, as a new array."""
    params = sequence.params
    logits = logits.copy()
    if params.repetition_penalty != 1:
        seen = np.unique(np.array(sequence.tokens))
        values = logits[seen]
        penalty = np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        counts = Counter(sequence.output)
        tokens = np.array(list(counts), np.int64)
        times = np.array(list(counts.values()), np.float32)
        logits[tokens] -= times * np.float32(params.frequency_penalty)
        logits[tokens] -= np.float32(params.presence_penalty)
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += np.float32(bias)
    if params.allowed_token_ids is not None:
        allowed = np.array(params.allowed_token_ids)
        kept = logits[allowed]
        logits[:] = -np.inf
        logits[allowed] = kept
    if forbidden:
        logits[list(forbidden)] = -np.inf
    return logits


def log_probabilities(logits: np.ndarray, count: int, token: int) -> dict[int, float]:
    """The `count` likeliest tokens, likeliest first, and `token`, with their log-probabilities."""
    wide = logits.astype(np.float64)
    top = wide.max()
    total = top + np.log(np.exp(wide - top).sum())
    best = np.argpartition(-wide, min(count, len(wide) - 1))[:count] if count else np.array([], int)
    best = best[np.argsort(-wide[best], kind="stable")]
    return {int(t): float(wide[t] - total) for t in dict.fromkeys([*best.tolist(), token])}
