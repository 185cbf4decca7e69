"""Windows, the view under convolution and pooling, read inside kernels of each template."""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.templates.pointwise import PointwiseSchedule
from tilewright.codegen.templates.reduce import ReduceSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

from . import samples
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")


LENGTHS = [3, 4, 9]


def windows(b: Builder, t, channels: int = 2):
    """[1, channels, t] to its windows of 3, each second place: [1, channels, places, 3]."""
    x = b.input("x", (1, channels, t))
    return b.window(b.pad(x, axis=2, before=1, after=1), axis=2, size=3, step=2)


def differences(b, t):
    """Each window less its first element."""
    seen = windows(b, t)
    return b.sub(seen, b.slice(seen, axis=3, start=0, stop=1))


def pooled(b, t):
    """Pooling: the largest of each window."""
    return b.max(b.relu(windows(b, t)), axes=(3,))


def convolved(b, t):
    """A convolution of 2 channels into 5, as one product."""
    seen = b.transpose(windows(b, t), perm=(0, 2, 1, 3))
    rows = b.reshape(seen, shape=(1, seen.shape[1], 6))
    return b.relu(b.matmul(rows, b.weight("w", (5, 6)), transpose_w=True))


CASES = {
    "pointwise": (differences, [PointwiseSchedule(64, 1)]),
    "reduce": (pooled, [ReduceSchedule(4, 4, True), ReduceSchedule(2, 16, False)]),
    "contract": (convolved, [GemvSchedule(4, 16, 1), DotSchedule(16, 16, 16, True)]),
}


def built(name: str) -> Builder:
    b = Builder(name)
    b.result = CASES[name][0](b, b.dim("t", 1, 64))
    return b


@pytest.mark.parametrize("name", CASES)
def test_compiled_for_the_cpu(name, device):
    b = built(name)
    graph = b.graph([b.result])
    rng = np.random.default_rng(0)
    weights = {w.name: rng.standard_normal(w.shape).astype(np.float32) for w in graph.weights}
    target = resolve_target(device)
    made = compile_graph(graph, weights, dense(), target)
    assert len(made.program.steps) == 1, "the windows are read by the kernel, not stored"
    run = Executable(made.program, made.weights, open_device(target))
    for t in LENGTHS:
        x = rng.standard_normal((1, 2, t)).astype(np.float32)
        (want,), _ = evaluate(graph, {"x": x}, weights)
        np.testing.assert_allclose(run(x)[0].numpy(), want, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("t", LENGTHS)
def test_interpreted_for_gpus(runner, name, t):
    b = built(name)
    case = samples.make(b, [b.result], {"t": t})
    for schedule in CASES[name][1]:
        check(runner, case, schedule)
