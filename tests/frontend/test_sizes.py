"""Proofs about sizes are sound: nothing is proved that some value in range contradicts."""

import itertools
import random

import numpy as np
import pytest
import torch

from tilewright.frontend.torch_export import import_module
from tilewright.ir.dim import Symbol, evaluate, floordiv, maximum, minimum, mod, symbol
from tilewright.ir.evaluate import evaluate as evaluate_graph
from tilewright.ir.facts import Facts

NAMES = ("a", "b")


def random_dim(rng: random.Random, depth: int):
    if depth == 0:
        return rng.choice([symbol(rng.choice(NAMES)), rng.randint(-3, 6)])
    x, y = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    kind = rng.randrange(6)
    if kind == 0:
        return x + y
    if kind == 1:
        return x - y
    if kind == 2:
        return x * rng.randint(-2, 3)
    if kind == 3:
        return minimum(x, y)
    if kind == 4:
        return maximum(x, y)
    return rng.choice([floordiv, mod])(x, rng.randint(1, 4))


def test_what_is_proved_holds_for_every_value():
    rng = random.Random(0)
    proofs = 0
    for _ in range(3000):
        symbols = {}
        for name in NAMES:
            lo = rng.randint(0, 4)
            symbols[name] = Symbol(name, lo, lo + rng.randint(0, 6))
        facts = Facts(symbols)
        x, y = random_dim(rng, rng.randint(1, 3)), random_dim(rng, rng.randint(1, 3))
        le, eq, ne = facts.proved_le(x, y), facts.proved_eq(x, y), facts.proved_ne(x, y)
        proofs += le + eq + ne
        ranges = [range(s.lo, s.hi + 1) for s in symbols.values()]
        for values in itertools.product(*ranges):
            bound = dict(zip(NAMES, values, strict=True))
            a, b = evaluate(x, bound), evaluate(y, bound)
            assert not le or a <= b, f"{x} <= {y} at {bound}"
            assert not eq or a == b, f"{x} == {y} at {bound}"
            assert not ne or a != b, f"{x} != {y} at {bound}"
    assert proofs > 1000, "the queries prove something at all"


def test_minima_and_quotients_are_taken_apart():
    n = symbol("n")
    facts = Facts({"n": Symbol("n", 1, None)})
    assert facts.proved_le(minimum(n, 5), n)
    assert facts.proved_le(n, maximum(n, 5))
    assert facts.proved_le(0, n - minimum(n, 2))
    assert facts.proved_le(0, n - maximum(n - 3, 0))
    assert facts.proved_le(floordiv(n + 1, 2), n)
    assert facts.proved_le(n - 1, 2 * floordiv(n, 2))
    assert not facts.proved_le(5, maximum(n, 4))
    assert not facts.proved_le(n, minimum(n, 5))
    assert not facts.proved_le(n, 2 * floordiv(n, 2))


@pytest.mark.parametrize(("kernel", "step"), [(2, 2), (3, 2), (3, 3)])
def test_windows_that_hang_over_at_any_size(kernel, step):
    """Torch's count of windows and ours are one, however many rows there are."""
    module = torch.nn.Sequential(*(torch.nn.MaxPool2d(kernel, step, ceil_mode=True) for _ in "ab"))
    rows = torch.export.Dim("rows", min=8)
    x = torch.randn(1, 2, 11, 9)
    imported = import_module(module, (x,), {}, dynamic_shapes=({2: rows},))
    (name,) = (v.name for v in imported.graph.inputs)
    for size in (8, 9, 10, 11, 12, 31):
        x = torch.randn(1, 2, size, 9)
        (ours,), _ = evaluate_graph(imported.graph, {name: x.numpy()}, imported.weights)
        np.testing.assert_array_equal(ours, module(x).numpy().astype(np.float64))
