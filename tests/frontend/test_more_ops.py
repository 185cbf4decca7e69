"""Operations whose rows are formulas, loops or counts: by kernels alone, and as torch has them."""

import pytest
import torch
import torch.nn.functional as F

from tilewright.frontend.dtypes import from_numpy, to_numpy
from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import TilewrightError, UnsupportedOp
from tilewright.ir.evaluate import evaluate

from ..models.zoo import Function

NAN, INF = float("nan"), float("inf")


def check(function, *args):
    """Import without calls, run by the reference, compare with eager."""
    module = Function(function)
    imported = import_module(module, args)
    inputs = {k: to_numpy(v) for k, v in imported.signature.flatten(args, {}).items()}
    outputs, _ = evaluate(imported.graph, inputs, imported.weights.__getitem__, precision=None)
    got = imported.signature.restore([from_numpy(x) for x in outputs])
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs in zip(leaves(got), leaves(module(*args)), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=False)


VALUES = torch.tensor([3.0, -1.0, 3.0, 0.0, -0.0, 7.5, -1.0, NAN, INF])
NUMBERS = torch.tensor([6, 6, 0, 3, 3, 3, 9, 0])
MASK = torch.tensor([[True, False, True], [False, True, True]])

CASES = {
    "different": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), NUMBERS),
    "different_pairs": (lambda x: torch.unique(x, return_counts=True), NUMBERS.view(2, 4)),
    "runs": (
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), NUMBERS,
    ),
    "one_run": (torch.unique_consecutive, NUMBERS[:1]),
    "counts": (lambda x: torch.bincount(x, minlength=3), NUMBERS),
    "weighed_counts": (lambda x, w: torch.bincount(x, w), NUMBERS, torch.linspace(0, 1, 8)),
    "no_counts": (lambda x: torch.bincount(x, minlength=3), NUMBERS[:0]),
    "divisors": (
        lambda x, y: (torch.gcd(x, y), torch.lcm(x, y), torch.gcd(x, torch.tensor(4))),
        NUMBERS, torch.tensor([4, -9, 0, 12, -3, 5, 0, 8]),
    ),
    "fractions": (torch.frexp, torch.cat([VALUES, torch.tensor([1e-42, 8.0, 0.1, 3e38])])),
    "signs": (
        lambda x, y: (torch.copysign(x, y), torch.copysign(x, -2.0), x.signbit(), x.angle()),
        VALUES, VALUES.flip(0),
    ),
    "polynomials": (
        lambda x, n: (
            torch.special.hermite_polynomial_h(x, n), torch.special.hermite_polynomial_he(x, n),
            torch.special.laguerre_polynomial_l(x, n), torch.special.legendre_polynomial_p(x, n),
            torch.special.chebyshev_polynomial_t(x, 3),
        ),
        torch.linspace(-1, 1, 5)[:, None], torch.tensor([-1.0, 0, 1, 4.5, 7]),
    ),
    "masked_scatter": (
        lambda x, m, s: (x.masked_scatter(m, s), x.masked_scatter(m[0], s)),
        torch.zeros(2, 3), MASK, torch.arange(1.0, 9),
    ),
    "put_by_mask": (
        lambda x, m, v: x.index_put((m,), v), torch.zeros(2, 3, 2), MASK,
        torch.arange(8.0).view(4, 2),
    ),
    "put_by_no_mask": (lambda x, m, v: x.index_put((m,), v), VALUES, VALUES < -5, VALUES[:0]),
    "put": (
        lambda x, i, v: (x.put(i, v), x.put(i, v, accumulate=True)),
        torch.zeros(2, 3), torch.tensor([[0, -1], [0, 2]]), torch.arange(4.0).view(2, 2),
    ),
    "median_of_numbers": (
        lambda x: (x.nanmedian(1).values, x.nanmedian(0, keepdim=True), x.nanmedian()),
        torch.tensor([[3.0, NAN, 1.0, 2.0], [NAN, NAN, NAN, NAN], [5.0, 1.0, NAN, NAN]]),
    ),
    "searched_in_order": (
        lambda x, s, v: torch.searchsorted(x, v, sorter=s, right=True),
        torch.tensor([5.0, 1.0, 3.0]), torch.tensor([1, 2, 0]), torch.tensor([0.0, 3.0, 9.0]),
    ),
    "strided": (
        lambda x: (x.as_strided((3, 2), (2, 1), 1), torch.as_strided_copy(x, (2, 2), (1, 3))),
        torch.arange(12.0),
    ),
    "strided_scatter": (
        lambda x, s: torch.as_strided_scatter(x, s, (2, 2), (1, 3), 2), torch.zeros(3, 4),
        torch.ones(2, 2),
    ),
    "sum_of_products": (
        lambda x, y, z: (
            torch.addbmm(x, y, z, beta=0.5),
            torch.addmm(x.long(), y[0].long(), z[0].long(), alpha=1.7),
        ),
        torch.ones(2, 4), torch.arange(18.0).view(3, 2, 3), torch.ones(3, 3, 4),
    ),
    "places": (
        lambda x, m: (
            torch.nonzero_static(x, size=3), torch.nonzero_static(m, size=6, fill_value=9),
            torch.nonzero_static(x.sum(), size=2), x.sum().nonzero(as_tuple=True),
        ),
        NUMBERS, MASK,
    ),
    "taken": (lambda x, i: x.take(i), MASK, torch.tensor([[0, -1], [3, 5]])),
    "resized": (lambda x: torch.ops.aten.resize(x, [2, 3]) + 0, NUMBERS),
    "windows": (lambda x: x * torch.signal.windows.kaiser(9, beta=5.0), VALUES[:1]),
    "selection": (lambda x, m: x.masked_select(m), torch.arange(3.0), MASK),
    "most_often": (
        lambda x, m: (x.mode(), x.mode(0, keepdim=True), m.mode(0), x.sum().mode()),
        NUMBERS.view(2, 4), MASK,
    ),
    "distances": (
        lambda x: (
            torch.pdist(x), torch.pdist(x, 1.0), torch.pdist(x[:2], INF), torch.pdist(x[:1]),
        ),
        torch.arange(12.0).view(4, 3) ** 2,
    ),
    "bags": (
        lambda x, i, o: tuple(
            F.embedding_bag(i, x, o, mode=mode, padding_idx=p, include_last_offset=last)
            for mode in ("sum", "mean", "max") for p in (None, 3, -1) for last in (True, False)
        ),
        torch.arange(40.0).view(10, 4) - 9, NUMBERS, torch.tensor([0, 2, 2, 7, 8]),
    ),
    "weighed_bags": (
        lambda x, i, w: (
            F.embedding_bag(i, x, per_sample_weights=w, mode="sum"), F.embedding_bag(i, x.half()),
        ),
        torch.arange(40.0).view(10, 4), NUMBERS.view(2, 4), torch.linspace(0, 1, 8).view(2, 4),
    ),
    "statistics": (
        lambda x: (
            torch.native_group_norm(x, None, None, 2, 4, 3, 2, 1e-5),
            torch.native_layer_norm(x, [4, 3], None, None, 1e-5),
        ),
        torch.arange(24.0).view(2, 4, 3) ** 2,
    ),
    "means_of_integers": (
        lambda x: (
            F.avg_pool1d(x, 2), F.avg_pool1d(x, 2, 1, 1), F.avg_pool1d(x, 3, 2, 1, True, False),
            F.avg_pool2d(x[None], (1, 3), divisor_override=4),
        ),
        NUMBERS.view(1, 2, 4) - 5,
    ),
    "squares_out_of_range": (
        lambda x: (
            x.norm(dim=0), torch.linalg.vector_norm(x, 3), x.std(1), x.std(), F.normalize(x),
            torch.dist(x[0], x[1], 4), torch.std_mean(x, 0),
        ),
        torch.tensor([[300.0, -2000.0, 5.0], [0.1, 900.0, -4.0]]).half(),
    ),
    "bounds_of_integers": (lambda x: (F.hardtanh(x, -1.7, 5.5), F.relu6(x)), NUMBERS - 2),
    "listed_places": (lambda m, x: (torch.argwhere(m), torch.argwhere(x.sum())), MASK, NUMBERS),
    "bytes_as_truths": (lambda x: (x.any(), x.all(1), x.any(0, keepdim=True)), MASK.byte() * 3),
    "parts_of_nothing": (lambda x: (x.split(3), x.split(2, 1)), torch.zeros(0, 3)),
    "slice_of_one": (lambda x, i: (x.index_select(0, i), x.index_select(1, i)), MASK, NUMBERS[2]),
    "bools_as_numbers": (lambda m: (m.square(), m + m, m * 2), MASK),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_by_kernels_alone(name):
    check(*CASES[name])


def test_a_loss_that_torch_computes_in_pieces():
    module = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")
    options = module.LinearCrossEntropyOptions()
    x, w = torch.linspace(-1, 1, 32).view(8, 4), torch.linspace(-2, 1, 40).view(10, 4).sin()
    check(lambda x, w, i: F.linear_cross_entropy(x, w, i, options=options), x, w, NUMBERS)


def test_what_a_call_cannot_stand_for_is_refused():
    class Squeezed(torch.nn.Module):
        def forward(self, x):
            return x.squeeze(0) + F.dropout(x, 0.5)

    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}}
    with pytest.raises(UnsupportedOp, match=r"squeeze(.|\n)*may be 1 or not") as raised:
        import_module(Squeezed(), (torch.rand(3, 3),), dynamic_shapes=dynamic, fallback=True)
    assert "dropout in training mode" in str(raised.value)


def test_an_index_outside_of_what_is_put_into_is_an_error():
    imported = import_module(Function(lambda x, i: x.put(i, x[:1])), (VALUES, torch.tensor([3])))
    with pytest.raises(TilewrightError, match=r"aten.put(.|\n)*9"):
        evaluate(imported.graph, {"args_0": VALUES.numpy(), "args_1": torch.tensor([9]).numpy()})


def test_batch_norm_gives_its_statistics_on_other_devices_than_the_cpu():
    """Torch's results have other shapes there; what is traced without data stands for them."""
    mean, var = (torch.full((4,), v, device="meta") for v in (0.0, 1.0))
    norm = torch.ops.aten._native_batch_norm_legit_no_training
    module = Function(lambda x, m, v: norm(x, None, None, m, v, 0.1, 1e-5))
    graph = import_module(module, (torch.empty(2, 4, 3, device="meta"), mean, var)).graph
    assert [x.type.shape for x in graph.outputs] == [(2, 4, 3), (4,), (4,)]
