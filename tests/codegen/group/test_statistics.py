"""Statistics of rows before products: which are part of the product, and why others are not."""

import pytest

from tilewright.codegen.elements import walk
from tilewright.codegen.group import make_plan
from tilewright.codegen.loops import Contract, Reduce, Ref
from tilewright.codegen.lower import lower_group
from tilewright.ir.builder import Builder
from tilewright.ir.combine import Contraction
from tilewright.ir.errors import ShapeError
from tilewright.ir.op import OPS, op
from tilewright.ir.report import Report
from tilewright.ir.target import TARGETS
from tilewright.ir.types import TensorType, bf16

K = 12


def row(b, name="g"):
    return b.weight(name, (K,))


def keep(b, reduction, x):
    return getattr(b, reduction)(x, axes=(-1,), keepdims=True)


def unit_length(b, x):
    """x / |x|, written out."""
    return b.mul(x, b.rsqrt(keep(b, "sum", b.mul(x, x))))


def standardized(b, x):
    """Layer norm without weights, written out, and scaled by another input."""
    centered = b.sub(x, keep(b, "mean", x))
    scaled = b.div(centered, b.sqrt(keep(b, "mean", b.mul(centered, centered))))
    return b.mul(scaled, b.input("scale", (1, K)))


def reshaped(b, x):
    rows = b.reshape(x, shape=(b.t, 1, K))
    return b.reshape(unit_length(b, rows), shape=x.shape)


def of_halves(b, x):
    halves = b.reshape(x, shape=(b.t, 2, K // 2))
    return b.reshape(b.rms_norm(halves, b.weight("h", (K // 2,))), shape=x.shape)


def by_the_largest(b, x):
    return b.div(x, keep(b, "max", b.abs(x)))


# what is made of x [t, K] before the product -> sweeps of x's row that come before the sums
FOLDED = {
    "rms_norm": (lambda b, x: b.rms_norm(x, row(b)), 0),
    "unit_length": (unit_length, 0),
    "narrowed": (lambda b, x: b.cast(b.rms_norm(x, row(b)), dtype=bf16), 0),
    "layer_norm": (lambda b, x: b.layer_norm(x, row(b), row(b, "bias")), 2),
    "standardized": (standardized, 2),
    "by_the_largest": (by_the_largest, 1),
    "clipped": (lambda b, x: b.relu(b.rms_norm(x, row(b))), 1),
    "reshaped": (reshaped, 0),
}


def planned(make, products=1, target="cpu"):
    """The plan of `products` products of what `make` makes of x [t, K], with the report."""
    b = Builder("norms")
    b.t = b.dim("t", 1, 64)
    x = make(b, b.input("x", (b.t, K)))
    out = [
        b.matmul(x, b.weight(f"w{i}", (5, x.shape[-1]), x.dtype), transpose_w=True)
        for i in range(products)
    ]
    report = Report()
    return make_plan(b.graph(out), report, target=TARGETS[target]), report


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("products", [1, 3])
def test_statistics_are_part_of_each_product(name, products):
    make, sweeps = FOLDED[name]
    plan, _ = planned(make, products)
    assert len(plan.groups) == products
    for nodes in plan.groups.values():
        low = lower_group(plan.graph, nodes, {})
        (part,) = low.kernel.parts
        assert isinstance(part, Contract)
        assert len(part.phases) == sweeps
        # what follows the sums is not in x; what x needs is swept before
        assert any(isinstance(e, Ref) for e in walk(part.x)) == bool(sweeps)
        assert bool(part.stats) == (not sweeps)


@pytest.mark.parametrize("name", FOLDED)
def test_on_gpus_only_statistics_that_follow_the_sums_are(name):
    make, sweeps = FOLDED[name]
    plan, report = planned(make, products=2, target="sm_90")
    lowered = [lower_group(plan.graph, nodes, {}) for nodes in plan.groups.values()]
    parts = [part for low in lowered for part in low.kernel.parts]
    assert [type(part) for part in parts] == [Reduce] * bool(sweeps) + [Contract] * 2
    for part in parts[-2:]:
        assert not part.phases
        assert bool(part.stats) == (not sweeps)
    assert ("x needs its statistics first" in str(report)) == bool(sweeps)


def transposed(b, x):
    square = b.rms_norm(b.input("square", (K, K)), row(b))
    return b.matmul(x, b.matmul(b.transpose(square, perm=(1, 0)), b.weight("v", (K, K))))


REFUSED = {
    "softmax": (lambda b, x: b.softmax(x, axis=-1), "an expensive x would be computed again"),
    "activated": (lambda b, x: b.tanh(b.rms_norm(x, row(b))), "tanh reads the norm, not only"),
    "residual": (lambda b, x: b.add(x, b.rms_norm(b.exp(x), row(b))), "add reads the norm"),
    "columns": (
        lambda b, x: b.mul(x, b.sum(x, axes=(0,), keepdims=True)),
        "sum is not over what the product sums over",
    ),
    "halves": (of_halves, "rms_norm is not over what the product sums over"),
    "transposed": (transposed, "rms_norm is not one value for all that the product sums over"),
    "after another": (
        lambda b, x: b.rms_norm(b.mul(b.softmax(x, axis=-1), x), row(b)),
        "it joins the reduction before it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_part_of_a_product_says_why(name):
    make, reason = REFUSED[name]
    plan, report = planned(make)
    assert len(plan.groups) > 1
    reasons = [why for step in report.passes for _, why in step.findings.declined]
    assert any(reason in why for why in reasons), reasons
    for nodes in plan.groups.values():
        lower_group(plan.graph, nodes, {})


def test_the_roles_of_the_contraction_say_which_axis_is_summed_over():
    """x^T @ w sums over the rows of x, and over the columns of what x is turned from."""
    try:

        @op(kind="contract")
        def product_of_columns(x, w):
            """x^T @ w."""
            return TensorType((x.shape[1], w.shape[1]), x.dtype)

        product_of_columns.set_contraction(lambda: Contraction(x="km"))
        b = Builder()
        normed = b.rms_norm(b.input("x", (K, K)), row(b))
        turned = b.transpose(
            b.layer_norm(b.input("y", (K, K)), row(b, "h"), row(b, "c")), perm=(1, 0)
        )
        out = [
            b.product_of_columns(x, b.weight(f"w{x.node.op.name}", (K, 5)))
            for x in (normed, turned)
        ]
        plan = make_plan(b.graph(out))
        shown = [[n.op.name for n in nodes] for nodes in plan.groups.values()]
        assert shown == [
            ["rms_norm"], ["product_of_columns"], ["layer_norm", "transpose", "product_of_columns"],
        ]  # fmt: skip
        (part,) = lower_group(plan.graph, plan.groups["k2"], {}).kernel.parts
        assert len(part.phases) == 2
    finally:
        OPS.pop("product_of_columns", None)


def test_a_norm_as_a_weight_is_stored():
    b = Builder()
    x = b.input("x", (b.dim("t", 1, 9), K))
    w = b.layer_norm(b.input("w", (7, K)), row(b), row(b, "bias"))
    report = Report()
    plan = make_plan(b.graph([b.matmul(x, w, transpose_w=True)]), report)
    assert len(plan.groups) == 2
    assert "a weight's expression would be computed again for every row" in str(report)


def test_many_products_share_a_norm_that_is_stored():
    plan, report = planned(FOLDED["layer_norm"][0], products=5)
    assert len(plan.groups) == 6
    assert "5 products read the norm, the limit is 4" in str(report)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_norm_of_a_value_without_axes_is_refused_when_it_is_built(name):
    b = Builder()
    x, g = b.input("x", ()), b.weight("g", ())
    with pytest.raises(ShapeError, match="a norm runs over the last axis, and it has none"):
        getattr(b, name)(x, *([g] if name == "rms_norm" else [g, g]))
