"""Contractions with every kind of prologue and epilogue: what the offline builds are made of."""

from collections.abc import Callable

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.types import DType, bf16, bool_, f32, i32, i64

from .harness import Case
from .samples import make

# name -> x of [s, k] -> what the product reads in its place, of the same shape and dtype
PROLOGUES: dict[str, Callable] = {
    "plain": lambda b, x: x,
    "norm": lambda b, x: b.rms_norm(x, _row(b, x, "g")),
    "centered norm": lambda b, x: b.layer_norm(x, _row(b, x, "g"), _row(b, x, "bias")),
    "spread about the mean": lambda b, x: _spread_about_the_mean(b, x),
    "norm and bias": lambda b, x: b.add(b.rms_norm(x, _row(b, x, "g")), _row(b, x, "bias")),
    "clipped norm": lambda b, x: b.relu(b.layer_norm(x, _row(b, x, "g"), _row(b, x, "bias"))),
    "norm by the largest": lambda b, x: _by_the_largest(b, x),
    "activation": lambda b, x: b.silu(x),
    "rounded": lambda b, x: _rounded(b, x),
    "sum with a rounded": lambda b, x: b.add(x, _rounded(b, x)),
    "norm of a rounded": lambda b, x: b.rms_norm(_rounded(b, x), _row(b, x, "g")),
    "joined": lambda b, x: _joined(b, x),
    "masked": lambda b, x: b.where(b.input("mask", x.shape, bool_), x, b.constant(0.0, x.dtype)),
    "looked up": lambda b, x: b.mul(x, b.gather(_row(b, x, "g"), b.input("ids", x.shape, i64))),
    "row's value": lambda b, x: _spread(b, b.input("row", (x.shape[0], 1), x.dtype), x),
    "column's value": lambda b, x: _spread(b, _row(b, x, "g"), x),
    "literal": lambda b, x: b.full(shape=x.shape, value=0.5, dtype=x.dtype),
}

# name -> y of [s, n] -> results
EPILOGUES: dict[str, Callable] = {
    "bias and residual": lambda b, y: [b.add(b.add(y, _row(b, y, "bias")), _like(b, y, "r"))],
    "activation": lambda b, y: [b.gelu(y)],
    "rounded and not": lambda b, y: [b.cast(b.cast(y, dtype=bf16), dtype=f32), b.exp(y)],
    "causal": lambda b, y: [_causal(b, y)],
    "to integers": lambda b, y: [b.cast(b.mul(y, b.constant(4.0, y.dtype)), dtype=i32)],
}


def product(
    prologue="plain", epilogue=None, m=3, n=24, k=40, dtype: DType = f32, w_dtype=None, most=512
) -> Case:
    """epilogue(prologue(x) @ w.T) over a symbolic number of rows, `most` at most."""
    b = Builder()
    s = b.dim("t", 0, most)
    x = b.input("x", (s, k), dtype)
    w = b.weight("w", (n, k), w_dtype or dtype)
    w = w if w.dtype == dtype else b.cast(w, dtype=dtype)
    y = b.matmul(PROLOGUES[prologue](b, x), w, transpose_w=True)
    results = [y] if epilogue is None else EPILOGUES[epilogue](b, y)
    rng = np.random.default_rng(7)
    arrays = {"mask": rng.integers(0, 2, (m, k)), "ids": rng.integers(0, max(k, 1), (m, k))}
    return make(b, results, {"t": m}, arrays)


def _rounded(b, x):
    """A product in float32, rounded to the dtype of x, as Gemma's norms are."""
    narrow = bf16 if x.dtype == f32 else x.dtype
    wide = b.mul(b.cast(x, dtype=f32), b.cast(_row(b, x, "scale"), dtype=f32))
    return b.cast(b.cast(wide, dtype=narrow), dtype=x.dtype)


def _spread_about_the_mean(b, x):
    centered = b.sub(x, b.mean(x, axes=(-1,), keepdims=True))
    variance = b.mean(b.mul(centered, centered), axes=(-1,), keepdims=True)
    deviation = b.sqrt(b.add(variance, b.constant(1e-5, x.dtype)))
    return b.mul(_row(b, x, "g"), b.div(centered, deviation))


def _by_the_largest(b, x):
    return b.mul(b.div(x, b.max(b.abs(x), axes=(-1,), keepdims=True)), _row(b, x, "g"))


def _joined(b, x):
    half = x.shape[1] // 2
    parts = [b.slice(x, axis=1, start=a, stop=e) for a, e in ((half, x.shape[1]), (0, half))]
    return b.concat(b.neg(parts[0]), parts[1], axis=1)


def _causal(b, y):
    rows, columns = (b.iota(length=d) for d in y.shape)
    seen = b.le(b.reshape(columns, shape=(1, y.shape[1])), b.reshape(rows, shape=(y.shape[0], 1)))
    return b.where(seen, y, b.constant(float("-inf"), y.dtype))


def _spread(b, part, x):
    return b.broadcast_to(part, shape=x.shape)


def _row(b, x, name):
    return b.weight(name, x.shape[-1:], x.dtype)


def _like(b, x, name):
    return b.input(name, x.shape, x.dtype)
