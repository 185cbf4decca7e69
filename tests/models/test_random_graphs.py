"""Random graphs through every pass and the kernels of a device, against the reference."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tilewright import passes
from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.ir.evaluate import evaluate
from tilewright.passes.differential import difference
from tilewright.passes.random_inputs import random_arguments, random_weights
from tilewright.runtime.executable import Executable

from ..ir.strategies import graphs

TOLERANCE = 1e-4  # float32 against float64, through up to ten ops


@pytest.mark.slow
@settings(  # each example costs a compilation
    max_examples=10, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(graphs(max_nodes=10))
def test_any_graph_runs_and_gives_what_the_reference_gives(device, slack, graph):
    weights = random_weights(graph, seed=1)
    target = resolve_target(device)
    compiled = compile_graph(graph, weights, passes.PIPELINES["dense"](), target)
    run = Executable(compiled.program, compiled.weights, open_device(target))
    for t in (1, 5, 9):
        given_arrays = random_arguments(graph, {"t": t}, 1.0, seed=3)
        outputs = run(*(given_arrays[v.name] for v in graph.inputs))
        expected, _ = evaluate(graph, given_arrays, weights)
        for actual, wanted in zip(outputs, expected, strict=True):
            assert difference(actual.numpy().astype(np.float64), wanted) < TOLERANCE * slack
