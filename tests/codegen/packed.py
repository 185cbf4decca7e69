"""Graphs over weights whose elements share bytes, with their weights and what they must give."""

from dataclasses import dataclass

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph
from tilewright.ir.types import DType, f32, i32, u4


@dataclass
class Packed:
    """`b` holds the nodes, `outputs` are their results."""

    b: Builder
    outputs: list
    inputs: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]

    def graph(self) -> Graph:
        return self.b.graph(self.outputs)

    def wanted(self) -> list[np.ndarray]:
        return evaluate(self.graph(), self.inputs, self.weights)[0]


def numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """All values that `dtype` has, at random."""
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    return rng.integers(low, low + 2**dtype.bits, shape).astype(dtype.numpy)


def linear(dtype: DType, m: int, n: int, k: int, group: int, zero: DType | None = f32) -> Packed:
    """x @ dequantize(w)^T."""
    rng, b = np.random.default_rng(k), Builder()
    x = b.input("x", (m, k), f32)
    shared = (n, k // group)
    weights = {
        "w": numbers(rng, dtype, (n, k)),
        "scale": rng.uniform(0.01, 0.1, shared).astype(np.float32),
    }
    operands = [b.weight("w", (n, k), dtype), b.weight("scale", shared, f32)]
    if zero is not None:
        operands.append(b.weight("zero", shared, zero))
        weights["zero"] = (
            numbers(rng, zero, shared) if zero.is_integer else rng.standard_normal(shared)
        ).astype(zero.numpy)
    y = b.matmul(x, b.dequantize(*operands), transpose_w=True)
    return Packed(b, [y], {"x": rng.standard_normal((m, k)).astype(np.float32)}, weights)


def symmetric(m: int, n: int, k: int) -> Packed:
    """x @ w^T, w written out: codes of 4 bits, where 8 stands for 0, times a number a row."""
    rng, b = np.random.default_rng(m), Builder()
    x, codes = b.input("x", (m, k), f32), b.cast(b.weight("w", (n, k), u4), dtype=f32)
    w = b.mul(b.sub(codes, b.constant(8.0, f32)), b.weight("s", (n, 1), f32))
    scales = rng.uniform(0.01, 0.1, (n, 1)).astype(np.float32)
    inputs = {"x": rng.standard_normal((m, k)).astype(np.float32)}
    weights = {"w": numbers(rng, u4, (n, k)), "s": scales}
    return Packed(b, [b.matmul(x, w, transpose_w=True)], inputs, weights)


def moved(dtype: DType, n: int, k: int) -> Packed:
    """A table padded, joined and turned, as i32: constants stand beside what is read."""
    rng, b = np.random.default_rng(n), Builder()
    w = b.weight("w", (n, k), dtype)
    padded = b.pad(w, axis=1, before=1, after=2, value=1)
    joined = b.concat(padded, b.full(shape=(2, k + 3), value=1, dtype=dtype), axis=0)
    out = b.cast(b.reshape(joined, shape=(k + 3, n + 2)), dtype=i32)
    some = b.add(out, b.input("x", (k + 3, n + 2), i32))  # or all of it is computed beforehand
    x = rng.integers(0, 9, (k + 3, n + 2)).astype(np.int32)
    return Packed(b, [some], {"x": x}, {"w": numbers(rng, dtype, (n, k))})


def lookup(dtype: DType, n: int, k: int) -> Packed:
    """Rows of a table, as they are and turned, as float32."""
    rng, b = np.random.default_rng(n), Builder()
    table, rows = b.weight("table", (n, k), dtype), b.input("rows", (3,), i32)
    found = b.cast(b.gather(table, rows), dtype=f32)
    turned = b.cast(b.slice(b.transpose(table, perm=(1, 0)), axis=1, start=1, stop=n), dtype=f32)
    at = np.array([n - 1, 0, n // 2], np.int32)
    return Packed(b, [found, turned], {"rows": at}, {"table": numbers(rng, dtype, (n, k))})
