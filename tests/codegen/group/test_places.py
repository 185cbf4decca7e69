"""What is computed before and after a scan, a scatter or a sort goes into its kernel."""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.target import cpu
from tilewright.ir.types import f32, i64
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable


def added(b, x, where, updates):
    return b.scatter(x, where, updates, axis=0, combine="add")


def halves(b, x):
    low, high = b.sort(b.neg(x), axis=1)
    return b.exp(low), b.add(high, high)


def both(b, x):
    values, places = b.topk(x, k=7, axis=0)
    return b.mul(values, b.cast(places, dtype=f32))


def kept(b, x):
    total = b.cumsum(b.relu(x), axis=0)
    return total, b.transpose(b.add(total, x), perm=(1, 0))


# name -> (what is computed of x, where and updates; kernels)
CASES = {
    "around a scan": (lambda b, x, w, u: b.mul(b.cumsum(b.mul(x, x), axis=1), x), 1),
    "a scan that is kept too": (lambda b, x, w, u: kept(b, x), 1),
    "what is expensive stays": (lambda b, x, w, u: b.cumsum(b.exp(x), axis=1), 2),
    "a scan of a scan": (lambda b, x, w, u: b.cumsum(b.neg(b.cumsum(x, axis=1)), axis=1), 2),
    "around a scatter": (lambda b, x, w, u: b.relu(added(b, b.neg(x), w, b.mul(u, u))), 1),
    "a scatter at places made": (lambda b, x, w, u: added(b, x, b.add(w, w), u), 1),
    "a scatter's rows": (lambda b, x, w, u: b.sum(added(b, x, w, u), axes=(1,)), 2),
    "around a sort": (lambda b, x, w, u: halves(b, x), 1),
    "both results": (lambda b, x, w, u: both(b, x), 1),
    "a lookup by a sort": (lambda b, x, w, u: b.gather_elements(x, b.sort(x)[1], axis=1), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kernels_and_results(name):
    make, kernels = CASES[name]
    b, rng = Builder(), np.random.default_rng(0)
    shapes = {"x": ((9, 30), f32), "where": ((40,), i64), "updates": ((40, 30), f32)}
    operands = [b.input(n, shape, dtype) for n, (shape, dtype) in shapes.items()]
    outputs = make(b, *operands)
    graph = b.graph(outputs if isinstance(outputs, tuple) else [outputs])
    made = compile_graph(graph, {}, dense(), cpu())
    assert len(made.program.steps) == kernels
    arrays = {
        n: rng.standard_normal(shape).astype(np.float32)
        if dtype == f32
        else rng.integers(0, 4, shape)
        for n, (shape, dtype) in shapes.items()
    }
    results = Executable(made.program, made.weights, open_device(cpu()))(*arrays.values())
    for got, want in zip(results, evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
