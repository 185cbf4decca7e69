"""Weights are computed when they are looked up, each from what it depends on."""

import numpy as np

from tilewright.api import compile_graph
from tilewright.api.machine import resolve_target
from tilewright.ir.builder import Builder
from tilewright.passes.pipelines import dense


def test_one_weight_costs_what_it_depends_on_however_many_there_are(monkeypatch):
    b, arrays = Builder(), {}
    x = b.input("x", (2, 8))
    for layer in range(12):
        name = f"w{layer}"
        arrays[name] = np.full((8, 8), layer, np.float32)
        w = b.weight(name, (8, 8))
        scaled = b.mul(w, b.constant(0.5, w.dtype))  # computed ahead of time
        x = b.relu(b.matmul(x, scaled))
    evaluated = []
    evaluate = compile_graph.evaluate

    def counting(graph, *args, **kwargs):
        evaluated.append(len(graph.nodes))
        return evaluate(graph, *args, **kwargs)

    compiled = compile_graph.compile_graph(b.graph([x]), arrays, dense(), resolve_target("cpu"))
    monkeypatch.setattr(compile_graph, "evaluate", counting)
    found = [compiled.weights[name] for name in compiled.weights]
    assert len(evaluated) == len(found) == 12
    assert max(evaluated) <= 4
    assert sorted(float(np.max(w)) for w in found) == [layer / 2 for layer in range(12)]
