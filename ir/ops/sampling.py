"""Choosing the next token."""

import numpy as np

from ..op import op
from ..types import TensorType, f32, i32, i64


@op(kind="sample")
def sample(logits, temperature, top_k, top_p, seed, step):
    """One token a row, drawn from softmax(logits / temperature) cut to top_k and top_p.

    logits: f32 [R, V]; temperature f32, top_k i32 (0: all), top_p f32 (1: all), seed i64, step i64
    (how many tokens the sequence has so far): [R] each -> i32 [R]. Temperature 0 is argmax, the
    first of equals. Kept are the tokens whose logit reaches the k-th largest, then of those the
    smallest set of likeliest ones whose probability reaches top_p; ties at the cut are kept. The
    draw is the Gumbel-max trick: argmax(logit + temperature * gumbel(seed, step, token)), so a
    row's choice depends on nothing but its own logits and parameters. Multiplied so, and not as
    logit / temperature + gumbel, nothing overflows at any temperature: as it goes to 0 the choice
    becomes the likeliest token. Probabilities are of (logit - largest logit) / temperature. A row
    without a likeliest token gives -1: one of its logits is NaN or infinite, or all are minus
    infinity.
    """
    rows = logits.shape[0]
    expected = {"temperature": f32, "top_k": i32, "top_p": f32, "seed": i64, "step": i64}
    if logits.rank != 2 or logits.dtype != f32:
        raise TypeError(f"logits is {logits}: must be f32 of rank 2")
    if not isinstance(logits.shape[1], int) or logits.shape[1] < 1:
        raise TypeError(f"logits is {logits}: how many tokens there are must be known, and not 0")
    for (name, dtype), given in zip(expected.items(), (temperature, top_k, top_p, seed, step)):
        if given != TensorType((rows,), dtype):
            raise TypeError(f"{name} is {given}: must be {TensorType((rows,), dtype)}")
    return TensorType((rows,), i32)


@sample.set_axes
def _(logits, *parameters):
    return (0, "it draws from"), *((0,) for _ in parameters)


@sample.set_reference
def _(logits, temperature, top_k, top_p, seed, step):
    rows = [
        _sample_row(logits[r], temperature[r], top_k[r], top_p[r], seed[r], step[r])
        for r in range(len(logits))
    ]
    return np.array(rows, np.int32)


def _sample_row(logits, temperature, top_k, top_p, seed, step) -> int:
    if not np.isfinite(logits.max()):
        return -1
    if temperature == 0:
        return int(np.argmax(logits))
    logits, temperature = logits.astype(np.float64), np.float64(temperature)
    keep = np.ones(len(logits), bool)
    if 0 < top_k < len(logits):
        keep = logits >= np.partition(logits, -top_k)[-top_k]
    if top_p < 1:
        weights = np.where(keep, np.exp((logits - logits.max()) / temperature), 0)
        order = np.argsort(-weights, kind="stable")
        reached = np.cumsum(weights[order]) >= top_p * weights.sum()
        keep &= weights >= weights[order][np.argmax(reached)]
    noise = gumbel(int(seed), int(step), len(logits))
    return int(np.argmax(np.where(keep, logits + temperature * noise, -np.inf)))


def hash_uniform(seed: int, step: int, tokens: int | np.ndarray) -> np.ndarray:
    """A float in (0, 1) for each token: a hash of (seed, step, token), by 32-bit mixing.

    `tokens` are their numbers (u32), or how many there are, from 0.

    Chosen over a generator with state because any kernel can compute element i alone, the same on
    every device. The mixer is the `lowbias32` construction (two multiply-xorshift rounds), applied
    to each word in turn.
    """
    key = np.uint32(_mix(np.uint32(seed & 0xFFFFFFFF)))
    key = _mix(key ^ np.uint32((seed >> 32) & 0xFFFFFFFF))
    key = _mix(key ^ np.uint32(step & 0xFFFFFFFF))
    if not isinstance(tokens, np.ndarray):
        tokens = np.arange(tokens, dtype=np.uint32)
    bits = _mix(tokens ^ key)
    bits = _mix(bits + key)
    return ((bits >> np.uint32(8)).astype(np.float64) + 0.5) / 2**24


def gumbel(seed: int, step: int, tokens: int | np.ndarray) -> np.ndarray:
    """Standard Gumbel noise: -log(-log(u)), with u as `hash_uniform` gives it."""
    return -np.log(-np.log(hash_uniform(seed, step, tokens)))


def _mix(x):
    with np.errstate(over="ignore"):
        x = x ^ (x >> np.uint32(16))
        x = x * np.uint32(0x21F0AAAD)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(0xD35A2D97)
        return x ^ (x >> np.uint32(15))
