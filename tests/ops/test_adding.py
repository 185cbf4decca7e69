"""The worked examples of docs/adding_an_op.md, each run as it is written there."""

import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.templates import choices
from tilewright.ir import scalar
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.op import OPS
from tilewright.ir.target import get_target
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

from ..codegen.triton import samples
from ..codegen.triton.conftest import runner
from ..codegen.triton.harness import check

__all__ = ["runner"]
pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding_an_op.md"


def example(heading: str) -> str:
    """The code under a heading of the page."""
    (section,) = (s for s in PAGE.read_text().split("\n## ") if s.startswith(heading))
    return re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)


@pytest.fixture(autouse=True)
def throw_away():
    """Ops declared by a test are gone after it."""
    ops, defined = set(OPS), set(scalar._DEFINED)
    yield
    for table, before in ((OPS, ops), (scalar._DEFINED, defined)):
        for name in set(table) - before:
            del table[name]


def weight(b, *shape):
    return b.weight(f"w{len(b.weights)}", shape)


def linear(b, x):
    return b.matmul(x, weight(b, 5, x.shape[-1]), transpose_w=True)


# heading -> cases: how the op is used (x is [t, 6]), and the result in NumPy
EXAMPLES = {
    "An elementwise op": [
        (
            lambda b, x: b.squared_relu_less(x, weight(b, 6)),
            lambda x, y: np.maximum(x, 0) ** 2 - y,
        ),
        (
            lambda b, x: b.squared_relu_less(b.sum(x, axes=(1,), keepdims=True), x),
            lambda x: np.maximum(x.sum(1, keepdims=True), 0) ** 2 - x,
        ),
        (
            lambda b, x: b.squared_relu_less(linear(b, x), weight(b, 5)),
            lambda x, w, y: np.maximum(x @ w.T, 0) ** 2 - y,
        ),
    ],
    "A scan": [
        (lambda b, x: b.growth(x, axis=1), lambda x: np.cumprod(1 + x, 1) - 1),
        (lambda b, x: b.neg(b.growth(b.abs(x), axis=0)), lambda x: 1 - np.cumprod(1 + abs(x), 0)),
    ],
    "A reduction": [
        (
            lambda b, x: b.geometric_mean(b.abs(x), axes=(1,)),
            lambda x: abs(x).prod(1) ** (1 / x.shape[1]),
        ),
        (
            lambda b, x: b.sub(x, b.geometric_mean(b.exp(x), axes=(-1,), keepdims=True)),
            lambda x: x - np.exp(x.mean(1, keepdims=True)),
        ),
    ],
    "A view": [
        (lambda b, x: b.exp(b.reversed(x, axis=0)), lambda x: np.exp(x[::-1])),
        (lambda b, x: b.max(b.reversed(x, axis=-1), axes=(1,)), lambda x: x.max(1)),
        (lambda b, x: linear(b, b.reversed(x, axis=1)), lambda x, w: x[:, ::-1] @ w.T),
        (lambda b, x: b.reversed(linear(b, x), axis=0), lambda x, w: (x @ w.T)[::-1]),
    ],
    "A contraction": [
        (
            lambda b, x: b.damped_linear(x, weight(b, 5, 6), weight(b, 5, 6)),
            lambda x, w, v: (x @ w.T) / (1 + np.exp(-x @ v.T)),
        ),
        (
            lambda b, x: b.relu(b.damped_linear(b.neg(x), weight(b, 5, 6), weight(b, 5, 6))),
            lambda x, w, v: np.maximum(-x @ w.T / (1 + np.exp(x @ v.T)), 0),
        ),
    ],
}
LENGTHS = [1, 7]


@pytest.fixture(params=EXAMPLES)
def uses(request):
    """The uses of an example, which is declared."""
    heading = request.param
    exec(example(heading), {"__name__": "example", "__package__": "tilewright.ir.ops"})
    return EXAMPLES[heading]


def built(uses):
    """A builder with x [t, 6], and of each use its output, weights, and what NumPy says of it."""
    b = Builder("example")
    x, found = b.input("x", (b.dim("t", 1, 64), 6)), []
    for use, expected in uses:
        before = len(b.weights)
        found.append((use(b, x), b.weights[before:], expected))
    return b, found


def test_reference_and_compiled_program_agree_with_numpy(uses, device):
    b, found = built(uses)
    graph = b.graph([out for out, _, _ in found])
    rng = np.random.default_rng(0)
    weights = {w.name: rng.standard_normal(w.shape).astype(np.float32) for w in graph.weights}
    target = resolve_target(device)
    made = compile_graph(graph, weights, dense(), target)
    run = Executable(made.program, made.weights, open_device(target))
    for t in LENGTHS:
        x = rng.standard_normal((t, 6)).astype(np.float32)
        referred, _ = evaluate(graph, {"x": x}, weights)
        for (_, own, expected), reference, got in zip(found, referred, run(x), strict=True):
            want = expected(x.astype(np.float64), *(weights[w.name].astype(float) for w in own))
            np.testing.assert_allclose(reference, want, atol=1e-9)
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


def test_one_triton_kernel_each(runner, uses):
    for use in uses:
        b, [(out, _, _)] = built([use])
        case = samples.make(b, [out], {"t": LENGTHS[-1]})
        _, buckets = choices(case.kernel, get_target("sm_90"))
        for schedule in dict.fromkeys(schedule for _, _, schedule in buckets):
            check(runner, case, schedule)
