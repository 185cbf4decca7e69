"""Choosing tokens from logits with NumPy: the op `sample`, and what it leaves out.

Without penalties and the like a choice is the one of the op's reference, token for token; a test
holds that.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ...ir.errors import RequestError
from ...ir.ops.sampling import gumbel
from .sampling_params import SamplingParams
from .sequence import Sequence


@dataclass(frozen=True)
class SampledToken:
    """A chosen token. Log-probabilities are of the model's own distribution, at temperature 1."""

    token: int
    logprob: float | None = None  # None unless asked for
    top: dict[int, float] | None = None


def choose(
    logits: np.ndarray, sequence: Sequence, forbidden: frozenset[int] = frozenset()
) -> SampledToken:
    """The next token of `sequence`. logits: f32 [V], not changed; `forbidden` cannot be chosen.

    RequestError when a logit is NaN, or the largest infinite: no token is the likeliest then; also
    when the parameters forbid all tokens.
    """
    params = sequence.params
    if not np.isfinite(logits.max()):
        raise not_numbers(logits, sequence)
    changed = logits
    if params.changes_logits or forbidden:
        changed = adjust(logits, sequence, forbidden)
        if changed.max() == -np.inf:
            raise RequestError(
                "no token could be chosen",
                where=f"token {sequence.length}",
                facts="biases, allowed_token_ids and min_tokens together forbid every token",
                fix="allow more of them",
            )
    token = draw(changed, params, sequence.seed, sequence.num_output)
    if params.logprobs is None:
        return SampledToken(token)
    top = log_probabilities(logits, params.logprobs, token)
    return SampledToken(token, top[token], top)


def not_numbers(logits: np.ndarray | None, sequence: Sequence) -> RequestError:
    """The error for logits of which none is the largest; None for those that are there no more."""
    return RequestError(
        "the model's logits are not numbers",
        where=f"token {sequence.length}",
        facts="some are NaN or infinite" if logits is None else _counts(logits),
        fix='use a wider dtype (dtype="float32"), or check the checkpoint\'s weights',
    )


def _counts(logits: np.ndarray) -> str:
    count = {
        "NaN": int(np.isnan(logits).sum()),
        "infinite": int(np.isposinf(logits).sum()),
        "minus infinity": int(np.isneginf(logits).sum()),
    }
    return ", ".join(f"{n} of {len(logits)} are {what}" for what, n in count.items() if n)


# u is between 2**-25 and 1 - 2**-25, so the noise between -2.9 and 17.4: a token whose logit is
# further than this, times the temperature, below the best one cannot win, and needs no noise
NOISE_SPAN = 21.0


def draw(logits: np.ndarray, params: SamplingParams, seed: int, step: int) -> int:
    """One token from softmax(logits / temperature), cut to top_k, top_p and min_p."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    # float32 parameters and float64 arithmetic, as in the op's reference
    heat = np.float64(np.float32(params.temperature))
    least = np.float64(logits.max()) - NOISE_SPAN * heat
    if 0 < params.top_k < len(logits):
        kth = len(logits) - params.top_k
        least = max(least, np.partition(logits, kth)[kth])
    if params.top_p < 1 or params.min_p > 0:
        least = max(least, _tail(logits, params, heat))
    keep = np.flatnonzero(logits >= least)
    noise = gumbel(seed, step, keep.astype(np.uint32))
    return int(keep[np.argmax(logits[keep].astype(np.float64) + heat * noise)])


def _tail(logits: np.ndarray, params: SamplingParams, heat: np.float64) -> np.float32:
    """The least logit that top_p and min_p keep, of those that top_k keeps."""
    below = logits.astype(np.float64) - np.float64(logits.max())
    weights = np.exp(below / heat) if heat > 0 else (below == 0).astype(np.float64)
    if 0 < params.top_k < len(logits):
        kth = len(logits) - params.top_k
        weights[logits < np.partition(logits, kth)[kth]] = 0
    least = np.float32(-np.inf)
    if params.min_p > 0:
        least = logits[weights >= params.min_p].min()
    if params.top_p < 1:
        wanted = np.float32(params.top_p) * weights.sum()
        kept = np.flatnonzero(weights)
        least = max(least, _nucleus(logits[kept], weights[kept], wanted))
    return least


def _nucleus(logits: np.ndarray, weights: np.ndarray, wanted: np.float64) -> np.float32:
    """The logit at which the likeliest tokens' weights first add up to `wanted`."""
    size = len(weights)
    count = min(size, 256)
    while True:  # few tokens suffice but for flat distributions: sort no more than it takes
        best = np.argpartition(weights, size - count)[size - count :] if count < size else None
        best = np.arange(size) if best is None else best
        order = best[np.argsort(-weights[best], kind="stable")]
        reached = np.cumsum(weights[order]) >= wanted
        if reached.any() or count == size:
            # by a rounding error it may not be reached: then the first, as in the reference
            return logits[order[np.argmax(reached)]]
        count = min(size, 8 * count)


def adjust(logits: np.ndarray, sequence: Sequence, forbidden: frozenset[int]) -> np.ndarray:
    """Logits after penalties, biases and exclusions, as a new array; at most the largest f32."""
    with np.errstate(all="ignore"):  # what overflows is cut to that, or forbidden at the other end
        changed = _adjusted(logits.copy(), sequence, forbidden)
    return np.minimum(changed, np.finfo(np.float32).max, out=changed)


def _adjusted(
    logits: np.ndarray,
    sequence: Sequence,
    forbidden: frozenset[int],
    tokens: np.ndarray | None = None,
) -> np.ndarray:
    """In place. `tokens` are those whose logits are given, in any order; None for all in theirs."""
    params = sequence.params

    def places(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the logits of some tokens are, and which of those tokens have one here."""
        if tokens is None:
            return of, np.arange(len(of))
        _, at, which = np.intersect1d(tokens, of, return_indices=True)
        return at, which

    if params.repetition_penalty != 1:
        seen, _ = places(np.unique(np.array(sequence.tokens)))
        values = logits[seen]
        penalty = np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        counts = Counter(sequence.output)
        at, which = places(np.array(list(counts), np.int64))
        times = np.array(list(counts.values()), np.float32)[which]
        logits[at] -= times * np.float32(params.frequency_penalty)
        logits[at] -= np.float32(params.presence_penalty)
    if params.logit_bias:
        at, which = places(np.array(list(params.logit_bias)))
        logits[at] += np.array(list(params.logit_bias.values()), np.float32)[which]
    if params.allowed_token_ids is not None:
        allowed, _ = places(np.unique(np.array(params.allowed_token_ids)))
        kept = logits[allowed]
        logits[:] = -np.inf
        logits[allowed] = kept
    if forbidden:
        logits[places(np.array(list(forbidden)))[0]] = -np.inf
    return logits


def choose_of_largest(
    largest: np.ndarray, tokens: np.ndarray, sequence: Sequence, forbidden: frozenset[int]
) -> int | None:
    """As `choose`, of the largest logits alone, f32 [K] from the largest on, and their tokens.

    For parameters that only lower logits. None where they do not decide it: a token whose logit is
    not among them could be as likely as what is left.
    """
    if not np.isfinite(largest[0]):
        return None
    with np.errstate(all="ignore"):
        changed = _adjusted(largest.copy(), sequence, forbidden, tokens)
    top = changed.max()
    return int(tokens[changed == top].min()) if top > largest[-1] else None


def log_probabilities(logits: np.ndarray, count: int, token: int) -> dict[int, float]:
    """The `count` likeliest tokens, likeliest first, and `token`, with their log-probabilities.

    Of equally likely ones the first come first.
    """
    wide = logits.astype(np.float64)
    top = wide.max()
    total = top + np.log(np.exp(wide - top).sum())
    best = np.array([], int)
    if count:
        last = max(len(wide) - count, 0)
        best = np.flatnonzero(wide >= np.partition(wide, last)[last])
        best = best[np.argsort(-wide[best], kind="stable")][:count]
    return {int(t): float(wide[t] - total) for t in dict.fromkeys([*best.tolist(), token])}
