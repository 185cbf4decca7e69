"""Groups: legal for the code generator, few, and the same for every layer."""

import pytest
from hypothesis import given, settings

from tilewright import passes
from tilewright.codegen.build import split_groups
from tilewright.codegen.encodings import choose_encodings
from tilewright.codegen.lower import lower_group
from tilewright.ir.target import cpu
from tilewright.ir.types import bf16
from tilewright.passes.partition import group_nodes, group_outputs, kind_of, traffic

from ..ir.strategies import graphs
from .models import decoder


def partitioned(graph, pipeline="language-model", dtype=None):
    return passes.run(graph, passes.PIPELINES[pipeline](dtype), check=1)


def check_groups(graph):
    """What the code generator relies on."""
    seen, finished = None, set()
    home = {}
    for node in graph.nodes:
        assert node.group is not None
        if node.group != seen:
            assert node.group not in finished, "groups are contiguous"
            finished.add(seen)
            seen = node.group
        home.update((r, node.group) for r in node.results)
    for name, nodes in group_nodes(graph).items():
        contracts = [n for n in nodes if n.op.kind == "contract"]
        kinds = {n.op.kind for n in nodes}
        assert len(contracts) <= 1, name
        if "attention" in kinds:
            assert kinds <= {"attention", "view"}, name
        if contracts:
            assert not kinds & {"reduce", "state", "gather", "scan"}, name
            norms = [n for n in nodes if n.op.kind == "composite"]
            assert len(norms) <= 1, name
        if kinds & {"reduce", "composite"} and not contracts:
            assert "state" not in kinds, name
        assert group_outputs(graph, nodes), f"{name} makes nothing"
    return group_nodes(graph)


def lower_all(graph):
    encodings = choose_encodings(graph, cpu())
    for nodes in split_groups(graph).values():
        lower_group(graph, nodes, encodings)


def ops_of(nodes):
    return [n.op.name for n in nodes if n.op.kind not in ("view", "source")]


def test_a_llama_layer_is_six_kernels():
    groups = list(check_groups(partitioned(decoder(layers=3)).graph).values())
    rope = ["mul", "neg", "mul", "add"]
    layer = [
        ["rms_norm", "matmul"],
        [*rope, *rope, "kv_append", "kv_append"],
        ["paged_attention"],
        ["matmul", "add"],
        ["rms_norm", "gated_linear"],
        ["matmul", "add"],
    ]
    shown = [ops_of(nodes) for nodes in groups]
    assert shown[:2] == [["gather"], ["cast", "mul", "cos", "sin"]]
    assert shown[2:8] == layer
    assert shown[8:14] == layer
    assert shown[14:17] == layer[:3]
    assert shown[17:] == [["gather", "gather"], *layer[3:], ["rms_norm", "matmul"], ["sample"]]


@pytest.mark.parametrize(
    ("fields", "kernels"),
    [
        ({}, 6),
        ({"qkv_bias": True}, 6),
        ({"window": 8}, 6),
        ({"fused_linears": True}, 6),
        ({"rotary_dim": 4}, 6),
        ({"qk_norm": True}, 8),  # the norms of q and of k, and the append
        ({"gemma": True}, 8),  # the norms after attention and after the MLP
    ],
)
def test_kernels_a_layer(fields, kernels):
    counts = [len(check_groups(partitioned(decoder(layers=n, **fields)).graph)) for n in (2, 3, 5)]
    assert counts[1] - counts[0] == kernels
    assert counts[2] - counts[1] == 2 * kernels


def test_weights_are_read_narrow():
    """The cast of a stored weight is in the kernel that reads it, once for each reader."""
    graph = partitioned(decoder(layers=1), dtype=bf16).graph
    stored = {w for w in graph.weights if w.dtype is bf16}
    assert len(stored) == 6
    for nodes in group_nodes(graph).values():
        for node in nodes:
            if any(v in stored for v in node.operands):
                assert node.op.name == "cast"
                assert node.results[0] not in group_outputs(graph, nodes)


@pytest.mark.parametrize("pipeline", ["language-model", "dense"])
def test_every_group_of_every_variant_has_a_kernel(variant, pipeline):
    graph = partitioned(variant, pipeline).graph
    check_groups(graph)
    lower_all(graph)


@settings(max_examples=60)
@given(graphs())
def test_any_graph_gets_legal_groups_that_compute_the_same(graph):
    result = passes.run(graph, passes.PIPELINES["dense"](), check=2)
    check_groups(result.graph)
    lower_all(result.graph)


def test_refusals_give_reasons_and_bytes():
    report = partitioned(decoder(layers=2, gemma=True)).report
    (found,) = [p.findings for p in report.passes if p.name == "partition"]
    reasons = {reason.partition(" (")[0] for _, reason in found.declined}
    assert "add reads the norm, not only products" in reasons
    assert "cos is expensive" in reasons
    assert "gather cannot be computed inside a product's loop" in reasons
    assert all("bytes moved" in reason for _, reason in found.declined)


def test_traffic_counts_what_must_move():
    graph = partitioned(decoder(layers=1), dtype=bf16).graph
    groups = list(group_nodes(graph).values())
    c = {"embed": groups[0], "qkv": groups[2]}
    t = graph.inputs[0].shape[1]
    # a lookup reads the rows it needs: stored narrow, widened when written; and the ids
    assert traffic(graph, c["embed"]) == t * 32 * 2 + t * 32 * 4 + t * 8
    assert traffic(graph, c["qkv"]) == t * 32 * 4 + 32 * 4 + 64 * 32 * 2 + t * 64 * 4
    assert [kind_of(nodes) for nodes in groups[:5]] == [
        "pointwise", "pointwise", "contract", "pointwise", "attention",
    ]  # fmt: skip
