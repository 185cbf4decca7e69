"""The memory plan: no two values that are alive together overlap, for any size of the dims."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import passes
from tilewright.codegen.group import make_plan
from tilewright.codegen.group.plan_memory import analyse, decide
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.errors import VerifyError
from tilewright.ir.plan import Plan
from tilewright.ir.program import ALIGNMENT
from tilewright.passes.random_inputs import bindings

from ...ir.strategies import graphs
from ...passes.models import decoder


def planned(graph, pipeline="language-model"):
    return make_plan(passes.run(graph, pipeline, check=1).graph)


def stored(plan):
    """(value, first group, last group) of what has a place in the arena."""
    number = {name: i for i, name in enumerate(plan.groups)}
    for value, offset in plan.offsets.items():
        readers = [number[plan.group_of[u]] for u in plan.graph.uses.get(value, ())]
        yield value, offset, number[plan.group_of[value.node]], max(readers)


def check_plan(plan, sizes):
    spans = []
    for value, offset, start, end in stored(plan):
        at = evaluate(offset, sizes)
        size = evaluate(value.type.nbytes, sizes)
        assert at % ALIGNMENT == 0
        assert at + size <= evaluate(plan.arena_bytes, sizes)
        spans.append((at, at + size, start, end))
    for i, (low, high, start, end) in enumerate(spans):
        for other_low, other_high, other_start, other_end in spans[:i]:
            together = start <= other_end and other_start <= end
            assert not (together and low < other_high and other_low < high)


def test_every_value_between_kernels_has_a_place(variant):
    plan = planned(variant)
    placed = set(plan.offsets)
    assert placed == {each.value for each in analyse(plan)}
    assert not placed & plan.graph.results
    assert not any(value.node.op.kind == "state" for value in placed)


def test_no_overlap_at_any_size(variant):
    plan = planned(variant)
    for sizes in [
        *bindings(plan.graph),
        {"t": 1, "rows": 64, "seqs": 64, "pages": 99, "width": 1},
        {"t": 512, "rows": 1, "seqs": 1, "pages": 99, "width": 40},
        {"t": 33, "rows": 31, "seqs": 7, "pages": 1, "width": 3},
    ]:
        check_plan(plan, sizes)


@settings(max_examples=60)
@given(graphs(max_nodes=20, regions=False), st.integers(1, 9))
def test_no_overlap_in_any_graph(graph, t):
    check_plan(planned(graph, "dense"), {"t": t, "n": 2 * t})


def test_layers_use_the_same_memory():
    few, many = (planned(decoder(layers=n)) for n in (2, 9))
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
    plan = make_plan(b.graph(out))
    for sizes in ({"t": 1, "r": 512}, {"t": 512, "r": 1}):
        check_plan(plan, sizes)
    slots = decide(plan.graph.facts, analyse(plan))
    assert [len(slot.sizes) for slot in slots] == [2, 2]


def test_groups_that_are_not_the_graph_in_order_are_refused():
    plan = planned(decoder(layers=1))
    first, second, *_ = plan.groups
    swapped = {**plan.groups, first: plan.groups[second], second: plan.groups[first]}
    with pytest.raises(VerifyError, match=r"not the graph's nodes, each once and in order"):
        Plan(plan.graph, swapped)
