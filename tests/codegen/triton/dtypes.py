"""Kernels over every dtype, and what the reference, rounding as declared, says of them."""

from collections.abc import Iterable

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.types import DTYPES, DType, bf16, bool_

from .harness import Case
from .samples import make

COMPUTED = [d for d in DTYPES.values() if not d.is_packed]
INTEGERS = [d for d in COMPUTED if d.is_integer]
PAIRS = [(s, t) for s in COMPUTED for t in COMPUTED if s != t]
SIZE = 40
# a case, what the reference says of each output, and whether the output saw a bf16
Checked = tuple[Case, list[np.ndarray], list[bool]]


def casts(pairs: Iterable[tuple[DType, DType]]) -> Checked:
    """From one dtype to another, and back in the same kernel where all numbers allow it."""
    b = Builder()
    made, arrays, rounds = [], {}, []
    for source, target in pairs:
        is_size = source.is_float and target.kind == "uint"
        x = b.input(f"size_{source.name}" if is_size else source.name, (SIZE,), source)
        arrays[x.name] = np.abs(numbers(source)) if is_size else numbers(source)
        there = b.cast(x, dtype=target)
        made.append(there)
        if target.is_float <= source.is_float:  # an infinity has no integer to come back as
            made.append(b.cast(there, dtype=source))
        rounds += [bf16 in (source, target)] * (len(made) - len(rounds))
    return *checked(b, made, arrays), rounds


def wrapping(dtype: DType) -> Checked:
    """Operations of an integer dtype, or of bool, over numbers up to its ends."""
    b = Builder()
    x, y = (b.input(name, (SIZE,), dtype) for name in "xy")
    made = [getattr(b, n)(x, y) for n in ("add", "mul", "minimum", "maximum", "and_", "or_", "xor")]
    made += [getattr(b, n)(x, y) for n in ("eq", "lt", "ge")]
    made += [
        b.not_(x),
        b.where(b.lt(x, y), x, b.constant(1, dtype)),
        b.add(x, b.constant(1, dtype)),
    ]
    if dtype.is_integer:
        made += [b.sub(x, y), b.floordiv(x, y), b.mod(x, y), b.neg(x), b.abs(x), b.relu(x)]
    arrays = {"x": numbers(dtype), "y": np.roll(numbers(dtype), 7)}
    if dtype.is_integer:
        arrays["y"] = np.where(arrays["y"] == 0, 3, arrays["y"]).astype(dtype.numpy)
    return *checked(b, made, arrays), [False] * len(made)


def reductions(dtype: DType, width: int = SIZE) -> Checked:
    """Each reduction that `dtype` has, over rows."""
    b = Builder()
    x = b.input("x", (3, width), dtype)
    names = ["max", "min"]
    names += ["any", "all"] if dtype == bool_ else ["sum", "prod"]
    made = [getattr(b, name)(x, axes=(1,)) for name in names]
    made += [b.argmax(x, axis=1), b.argmin(x, axis=1)]
    row = numbers(dtype)
    if dtype.is_float:  # sums that are exact in any order, and products that are finite
        row = np.sign(row.astype(np.float32)).astype(dtype.numpy)
    arrays = {"x": np.stack([row, row[::-1], np.roll(row, 5)])}
    return *checked(b, made, arrays), [False] * len(made)


def numbers(dtype: DType) -> np.ndarray:
    """Values of `dtype` whose conversions are all defined: no float is beyond an integer."""
    rng = np.random.default_rng(11)
    if dtype == bool_:
        return rng.integers(0, 2, SIZE).astype(bool)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.max, info.max // 3]
        bits = [value % 2**64 for value in (*ends, *range(-18, SIZE - 21))]
        return np.array(bits, np.uint64).astype(dtype.numpy)
    edges = [0.0, -0.0, 0.5, 1.5, -2.5, 17, 19, 21, 1 + 2**-9, 2**-9, 2**-10, 3 * 2**-10, 2**-17]
    return np.array([*edges, *rng.uniform(-120, 120, SIZE - len(edges))]).astype(dtype.numpy)


def checked(b: Builder, made: list, arrays: dict[str, np.ndarray]) -> tuple[Case, list[np.ndarray]]:
    with np.errstate(all="ignore"):
        wanted, _ = evaluate(b.graph(made), arrays, precision=None)
    return make(b, made, {}, arrays), wanted
