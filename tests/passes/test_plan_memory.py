"""The memory plan: no two values that are alive together overlap, for any size of the dims."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import passes
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.errors import PassError
from tilewright.ir.program import ALIGNMENT
from tilewright.passes.plan_memory import analyse, decide
from tilewright.passes.random_inputs import bindings

from ..ir.strategies import graphs
from .models import decoder


def stored(graph):
    """(value, first group, last group) of what has a place in the arena."""
    number = {}
    for node in graph.nodes:
        number.setdefault(node.group, len(number))
    found = []
    for node in graph.nodes:
        for result, offset in zip(node.results, node.offsets or ()):
            if offset is not None:
                readers = [number[u.group] for u in graph.uses.get(result, ())]
                found.append((result, offset, number[node.group], max(readers)))
    return found


def check_plan(graph, total, sizes):
    values = stored(graph)
    spans = []
    for value, offset, start, end in values:
        at = evaluate(offset, sizes)
        size = evaluate(value.type.nbytes, sizes)
        assert at % ALIGNMENT == 0
        assert at + size <= evaluate(total, sizes)
        spans.append((at, at + size, start, end))
    for i, (low, high, start, end) in enumerate(spans):
        for other_low, other_high, other_start, other_end in spans[:i]:
            together = start <= other_end and other_start <= end
            assert not (together and low < other_high and other_low < high)
    return values


def test_every_value_between_kernels_has_a_place(variant):
    result = passes.run(variant, "language-model", check=1)
    graph = result.graph
    placed = {value for value, *_ in stored(graph)}
    crossing = {each.value for each in analyse(graph)}
    assert placed == crossing
    assert not placed & graph.results
    assert not any(n.op.kind == "state" and n.offsets for n in graph.nodes)


def test_no_overlap_at_any_size(variant):
    result = passes.run(variant, "language-model", check=1)
    for sizes in [
        *bindings(result.graph),
        {"t": 1, "rows": 64, "seqs": 64, "pages": 99, "width": 1},
        {"t": 512, "rows": 1, "seqs": 1, "pages": 99, "width": 40},
        {"t": 33, "rows": 31, "seqs": 7, "pages": 1, "width": 3},
    ]:
        check_plan(result.graph, result.arena_bytes, sizes)


@settings(max_examples=60)
@given(graphs(max_nodes=20), st.integers(1, 9))
def test_no_overlap_in_any_graph(graph, t):
    result = passes.run(graph, passes.PIPELINES["dense"](), check=1)
    check_plan(result.graph, result.arena_bytes, {"t": t})


def test_layers_use_the_same_memory():
    few, many = (passes.run(decoder(layers=n), "language-model", check=1) for n in (2, 9))
    assert few.arena_bytes == many.arena_bytes


def test_sizes_are_compared_by_proof_only():
    """A likely value says that t is larger than r; only both sizes together are safe."""
    b = Builder()
    t, r = b.dim("t", 1, 512, hint=512), b.dim("r", 1, 512, hint=1)
    x, y = b.input("x", (t, 16)), b.input("y", (r, 16))
    w = b.weight("w", (16, 16))
    out = []
    for value in (x, y):
        for _ in range(3):
            value = b.matmul(value, w, transpose_w=True)
        out.append(value)
    result = passes.run(b.graph(out), "partition,plan-memory", check=1)
    for sizes in ({"t": 1, "r": 512}, {"t": 512, "r": 1}):
        check_plan(result.graph, result.arena_bytes, sizes)
    slots = decide(result.graph.facts, analyse(result.graph))
    assert [len(slot.sizes) for slot in slots] == [2, 2]


def test_a_graph_without_groups_is_refused():
    with pytest.raises(PassError, match=r"a node is in no group(.|\n)*`partition`"):
        passes.run(decoder(layers=1), "plan-memory", check=1)
