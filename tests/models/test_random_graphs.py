"""Random graphs through every pass and the kernels of a device, against the reference.

Texts in graphs/ once failed. A failure here is cut down by `reduced` of fuzzing.py, whose text is
printed: put it there too.
"""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tilewright import passes
from tilewright.ir.op import OPS
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph
from tilewright.ir.verify import verify
from tilewright.passes import differential
from tilewright.passes.random_inputs import bindings, random_arguments, random_weights
from tilewright.passes.rounding import expected

from ..ir.random_graphs import by_kind, random_graph
from ..ops.interpreted import Interpreter, make_interpretable
from ..ops.test_lowering import SMALL
from .fuzzing import by_interpreter, on_device, reduced, wrong

TEXTS = sorted((Path(__file__).parent / "graphs").rglob("*.ir"))
IN_TRITON = [path for path in TEXTS if path.parent.name == "triton"]

# what random graphs have none of, and where it is tried instead
ELSEWHERE = {
    "kv_append": "a state that is consumed: tests/passes/test_page_kv.py",
    "paged_attention": "pages that make sense: tests/passes/test_page_kv.py",
}
SEEDS = st.integers(0, 2**32)  # of programs, whose failures `reduced` cuts down
few = settings(  # each example costs a compilation
    max_examples=1, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)


def check(graph, make, slack=1.0):
    """Nothing is wrong; else the least part of the graph that shows it is told."""
    verify(graph)
    found = wrong(graph, make, slack)
    if found:
        small = reduced(graph, lambda part: "\n".join(map(str, wrong(part, make, slack))))
        pytest.fail("\n".join([*map(str, found), print_graph(small)]))


def test_every_op_is_in_random_graphs_or_tried_elsewhere():
    made = {op.name for ops in by_kind().values() for op in ops}
    assert OPS.keys() - made == ELSEWHERE.keys()


@settings(max_examples=15, phases=[Phase.generate])
@given(SEEDS)
def test_passes_keep_the_numbers_of_any_graph(seed):
    graph = random_graph(Random(seed), max_nodes=8)
    verify(graph)
    weights = random_weights(graph, seed=1)
    result = passes.run(graph, passes.PIPELINES["dense"](), check=1)
    after = weights
    if result.prepare is not None:
        after = differential.prepared(result.graph, result.prepare, weights)
    for sizes in bindings(graph):
        arguments = random_arguments(graph, sizes, 1.0, seed=2)
        got = differential.run(result.graph, arguments, after)
        for one, numbers in zip(expected(graph, arguments, weights), got, strict=True):
            assert one.excess(numbers) <= 1


@pytest.mark.slow
@few
@given(SEEDS)
def test_any_graph_runs_and_gives_what_the_reference_gives(device, slack, seed):
    check(random_graph(Random(seed), max_nodes=10, islands=6), on_device(device), slack)


@pytest.fixture(scope="module")
def interpreter():
    pytest.importorskip("triton", reason="Triton is in the extra `gpu`")
    with pytest.MonkeyPatch.context() as patch:
        make_interpretable(patch, SMALL)
        running = Interpreter()
        yield running
        running.close()


@pytest.mark.slow
@few
@given(seed=SEEDS)
def test_any_graph_gives_the_same_in_triton(interpreter, seed):
    graph = random_graph(Random(seed), max_nodes=6, islands=2, regions=False)
    check(graph, by_interpreter(interpreter), slack=4.0)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_what_once_failed(path, device, slack):
    check(parse_graph(path.read_text(), path=path.name), on_device(device), slack)


@pytest.mark.parametrize(
    "path", [p for p in TEXTS if p.parent.name == "triton"], ids=lambda p: p.stem
)
def test_what_once_failed_in_triton(path, interpreter):
    check(parse_graph(path.read_text(), path=path.name), by_interpreter(interpreter), slack=4.0)
