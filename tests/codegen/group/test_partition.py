"""Groups: legal for the code generator, few, and the same for every layer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import passes
from tilewright.codegen.encodings import choose_encodings
from tilewright.codegen.group import make_plan
from tilewright.codegen.lower import lower_group
from tilewright.codegen.templates import template_of
from tilewright.ir.builder import Builder
from tilewright.ir.report import Report
from tilewright.ir.target import cpu, get_target
from tilewright.ir.types import bf16, f32
from tilewright.passes import differential
from tilewright.passes.random_inputs import bindings, random_arguments, random_weights

from ...ir.strategies import graphs
from ...passes.models import decoder


def planned(graph, pipeline="language-model", dtype=None, report=None):
    return make_plan(passes.run(graph, passes.PIPELINES[pipeline](dtype), check=1).graph, report)


def check_groups(plan):
    """What the code generator relies on."""
    for name, nodes in plan.groups.items():
        contracts = [n for n in nodes if n.op.kind == "contract"]
        kinds = {n.op.kind for n in nodes}
        assert len(contracts) <= 1, name
        if "attention" in kinds:
            assert kinds <= {"attention", "view"}, name
        if contracts:
            assert not kinds & {"state", "gather", "scan"}, name
        if kinds & {"reduce", "composite"} and not contracts:
            assert "state" not in kinds, name
        assert plan.results_of(name), f"{name} makes nothing"
    return plan.groups


def lower_all(plan):
    encodings = choose_encodings(plan.graph, cpu())
    for nodes in plan.groups.values():
        lower_group(plan.graph, nodes, encodings)


def ops_of(nodes):
    return [n.op.name for n in nodes if n.op.kind not in ("view", "source")]


def test_a_llama_layer_is_six_kernels():
    groups = list(check_groups(planned(decoder(layers=3))).values())
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
    assert shown[0] == ["maximum", "gather", "maximum", "cast", "lt", "where", "gather"]
    assert shown[1] == ["cast", "mul", "cos", "sin"]
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
    counts = [len(check_groups(planned(decoder(layers=n, **fields)))) for n in (2, 3, 5)]
    assert counts[1] - counts[0] == kernels
    assert counts[2] - counts[1] == 2 * kernels


def test_weights_are_read_narrow():
    """The cast of a stored weight is in the kernel that reads it, once for each reader."""
    plan = planned(decoder(layers=1), dtype=bf16)
    stored = {w for w in plan.graph.weights if w.dtype is bf16}
    assert len(stored) == 6
    for name, nodes in plan.groups.items():
        for node in nodes:
            if any(v in stored for v in node.operands):
                assert node.op.name == "cast"
                assert node.results[0] not in plan.results_of(name)


@pytest.mark.parametrize("pipeline", ["language-model", "dense"])
def test_every_group_of_every_variant_has_a_kernel(variant, pipeline):
    plan = planned(variant, pipeline)
    check_groups(plan)
    lower_all(plan)


@settings(max_examples=60)
@given(graphs(regions=False), st.sampled_from(["cpu", "sm_90"]))
def test_any_graph_gets_legal_groups_that_compute_the_same(graph, target):
    result = passes.run(graph, passes.PIPELINES["dense"](), check=1)
    plan = make_plan(result.graph, target=get_target(target))
    check_groups(plan)
    lower_all(plan)
    weights = random_weights(result.graph, seed=1)
    for binding in bindings(result.graph):
        arguments = random_arguments(result.graph, binding, 1.0, seed=2)
        before = differential.run(result.graph, arguments, weights)
        for a, b in zip(differential.run(plan.graph, arguments, weights), before, strict=True):
            assert differential.difference(a, b) == 0


def residual(b, x, y):
    """A sum that is a result, and its norm."""
    total = b.add(x, y)
    return total, b.rms_norm(total, b.weight("w", x.shape[-1:]))


def circular(b, x, y):
    """A sum that a norm reads, of a group that the norm waits for."""
    total = b.add(x, y)
    product = b.matmul(total, y, transpose_w=True)
    return total, b.softmax(b.add(total, product))


def several(b, x, y):
    """Reductions of the same rows."""
    return b.softmax(x), b.argmax(x, axis=-1), b.sum(b.mul(x, y), axes=(1,))


# what is computed of x and y -> the groups of a GPU, and of a CPU
TOGETHER = {
    "a residual and its norm": (residual, 1, 2),
    "with a product between": (circular, 3, 3),
    "a sum of rows stores no rows": (lambda b, x, y: [s := b.add(x, y), b.sum(s, axes=(1,))], 2, 2),
    "reductions of the same rows": (several, 1, 3),
    "small ones": (lambda b, x, y: [b.exp(x), b.transpose(b.neg(y), perm=(1, 0))], 1, 2),
    "one behind the other": (lambda b, x, y: [b.softmax(b.exp(x)), b.neg(y)], 2, 2),
    "of other rows": (lambda b, x, y: [b.softmax(x), b.softmax(x, axis=0)], 2, 2),
}


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_rows_that_are_read_together_are_one_kernel_on_a_gpu(name, target):
    make, *counts = TOGETHER[name]
    b = Builder()
    x, y = (b.input(v, (16, 16)) for v in "xy")
    plan = make_plan(b.graph(list(make(b, x, y))), target=get_target(target))
    assert len(plan.groups) == counts[target == "cpu"]
    lower_all(plan)


def test_refusals_give_reasons_and_bytes():
    report = Report()
    planned(decoder(layers=2, gemma=True), report=report)
    (found,) = [p.findings for p in report.passes if p.name == "partition"]
    reasons = {reason.partition(" (")[0] for _, reason in found.declined}
    assert "add reads the norm, not only products" in reasons
    assert "cos is expensive" in reasons
    assert "gather cannot be computed inside a product's loop" in reasons
    assert all("bytes moved" in reason for _, reason in found.declined)


def test_traffic_counts_what_must_move():
    plan = planned(decoder(layers=1), dtype=bf16)
    t = plan.graph.inputs[0].shape[1]

    def traffic(name):
        low = lower_group(plan.graph, plan.groups[name], {})
        return template_of(*plan.groups[name]).traffic(low.kernel)

    # a lookup reads the rows it needs: stored narrow, widened when written; the ids and where they
    # are; and of those that are elsewhere at most one for each element
    assert traffic("k0") == t * 32 * 2 + t * 32 * 4 + t * (8 + 4) + t * 32 * 4
    assert traffic("k2") == t * 32 * 4 + 32 * 4 + 64 * 32 * 2 + t * 64 * 4
    assert [template_of(*nodes).name for nodes in list(plan.groups.values())[:5]] == [
        "pointwise", "pointwise", "contract", "pointwise", "attention",
    ]  # fmt: skip


def read_by_reductions(make):
    """A value of four axes, by `make(b, x, y, z)`, reduced along each by itself and along all."""
    b = Builder()
    value = make(b, *(b.input(name, (3, 4, 5, 6), f32) for name in "xyz"))
    over = [(0,), (1,), (2,), (3,), (0, 1, 2, 3)]
    report = Report()
    plan = make_plan(b.graph([b.sum(value, axes=a) for a in over]), report)
    check_groups(plan)
    return plan, report.passes[0]


def test_what_costs_less_to_compute_again_is_repeated_by_however_many():
    plan, report = read_by_reductions(lambda b, x, y, z: b.abs(x))
    assert report.findings.fired["repeat"] == 1
    assert [ops_of(nodes) for nodes in plan.groups.values()] == [["abs", "sum"]] * 5


def test_what_costs_more_is_stored_and_the_report_says_what_either_takes():
    plan, report = read_by_reductions(lambda b, x, y, z: b.where(b.gt(x, y), y, z))
    assert [ops_of(nodes) for nodes in plan.groups.values()][1:] == [["sum"]] * 5
    reasons = [reason for _, reason in report.findings.declined]
    assert any(r.startswith("5 groups read it: repeating ") and "storing" in r for r in reasons)


@pytest.mark.parametrize("groups", [1, 20], ids=["product", "sums"])
@pytest.mark.parametrize(("step", "is_stored"), [(1, True), (2, False)])
def test_what_windows_read_many_times_is_made_once(groups, step, is_stored):
    """Windows of 3 by 3: an element is in nine of them, or, where they are 2 apart, in two."""
    b = Builder("windows")
    x, s = b.input("x", (1, 40, 40, 20), f32), b.input("s", (20,), f32)
    image = b.transpose(b.add(x, b.mul(x, s)), perm=(0, 3, 1, 2))
    for axis in (2, 3):
        image = b.pad(image, axis=axis, before=1, after=1)
    w = b.weight("w", (20, 20 // groups, 3, 3), f32)
    result = b.conv(image, w, strides=(step, step), dilation=(1, 1), groups=groups)
    plan = planned(b.graph([result]), "dense")
    kinds = [ops_of(nodes) for nodes in check_groups(plan).values()]
    assert (["mul", "add"] in kinds) == is_stored, kinds
    lower_all(plan)
