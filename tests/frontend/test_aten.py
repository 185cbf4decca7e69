"""Each family of ATen operations: imported with symbolic sizes, evaluated, compared with torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilewright.frontend.importer import HANDLERS
from tilewright.frontend.torch_export import import_module
from tilewright.ir.evaluate import evaluate
from tilewright.ir.verify import verify

from ..models.zoo import Function
from .aten_elements import ELEMENTS
from .aten_places import PLACES
from .vision_places import VISION

SIZES = (1, 2, 5)  # of the symbolic axis; 5 is traced


def generate(kind: str, n: int) -> torch.Tensor:
    """An argument; `n` is the size of the symbolic axis."""
    rng = torch.Generator().manual_seed(n)
    if kind == "i":
        return torch.randint(0, 4, (n, 6), generator=rng)
    if kind == "i+":
        return torch.randint(1, 5, (n, 6), generator=rng) * torch.tensor([1, -1, 1, 1, -1, 1])
    if kind == "m":
        return torch.rand((n, 6), generator=rng) > 0.5
    if kind == "p":
        return torch.rand((n, 6), generator=rng, dtype=torch.float64) + 0.1
    if kind == "row":
        return torch.randn((6,), generator=rng, dtype=torch.float64)
    if kind == "x3":
        return torch.randn((n, 4, 6), generator=rng, dtype=torch.float64)
    if kind == "x4":
        return torch.randn((2, 4, n, 8), generator=rng, dtype=torch.float64)
    if kind == "k4":
        return torch.randn((2, 2, n, 8), generator=rng, dtype=torch.float64)
    if kind == "im":
        return torch.randn((n, 4, 7, 8), generator=rng, dtype=torch.float64)
    if kind == "vol":
        return torch.randn((n, 2, 4, 3, 6), generator=rng, dtype=torch.float64)
    if kind[0] == "w":
        return torch.randn(tuple(map(int, kind[1:])), generator=rng, dtype=torch.float64)
    assert kind == "x"
    return 2 * torch.randn((n, 6), generator=rng, dtype=torch.float64)


# torch function, kinds of arguments; the symbolic axis is the one of size n in `generate`
CASES = {
    **ELEMENTS,
    **PLACES,
    **VISION,
    # reductions
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum((0, 1)), x.sum(-1, keepdim=True)), "x"),
    "sum_int": (lambda i, m: (i.sum(1), m.sum(0), m.sum(1, dtype=torch.float64)), "i m"),
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean(0, keepdim=True)), "x"),
    "extrema": (lambda x: (x.amax(1), x.amin(0), x.max(), x.min(), x.max(1), x.min(0)), "x"),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.argmax(1, keepdim=True)), "x"),
    "any_all": (lambda m, i: (m.any(), m.any(1), m.all(0), i.all(1), m.all()), "m i"),
    "prod": (lambda x: (x.prod(1), x.prod()), "x"),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), "x"),
    "softmax_dtype": (lambda x: torch.softmax(x.float(), -1, dtype=torch.float64), "x"),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)), "x"),
    "variance": (
        lambda x: (x.var(1), x.std(1), x.var(1, unbiased=False), torch.var_mean(x, 1), x.var((1,))),
        "x",
    ),
    "variance_symbolic": (lambda x: x.var(0, correction=0), "x"),
    "variance_corrected": (
        lambda x, row: (x.std(1, correction=2), x.std(1, correction=0.5), torch.std_mean(row)),
        "x row",
    ),
    "variance_of_a_number": (lambda row: row[0].std(unbiased=False), "row"),
    "norms": (lambda x: (x.norm(dim=1), torch.linalg.vector_norm(x, 1, dim=0)), "x"),
    "norms_of_any_order": (
        lambda x, y: (
            [x.norm(p, dim=1) for p in (0, 0.5, 3, -1, -2.5, float("inf"), -float("inf"))],
            (F.normalize(x, p=3, dim=0), torch.dist(x, y, 4), F.pairwise_distance(x, y, p=1)),
            [torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.5, float("inf"))],
        ),
        "x x",
    ),
    "searches": (
        lambda x, i: (
            torch.bucketize(x, torch.tensor([-1.0, 0, 0, 2]).double()),
            torch.bucketize(i, torch.tensor([0, 1, 3]), right=True),
            torch.searchsorted(torch.tensor([1, 2, 2, 3]), i, side="right", out_int32=True),
            torch.searchsorted(torch.cumsum(x * x, 1), x),
        ),
        "x i",
    ),
    # views
    "views": (
        lambda x: (
            x.view(-1, 2, 3),
            x.reshape(-1),
            x.t(),
            x.transpose(0, 1),
            x[None],
            x[..., None],
        ),
        "x",
    ),
    "flatten": (lambda x: (x.flatten(), x.flatten(1), x.unflatten(2, (2, 3))), "x3"),
    "permute": (lambda x: (x.permute(2, 0, 1), x.movedim(0, -1), x.mT, x.swapaxes(0, 1)), "x3"),
    "squeeze": (lambda x: (x.unsqueeze(1).squeeze(1), x[:, :1].squeeze(-1), x.unsqueeze(0)), "x"),
    "expand": (
        lambda x, row: (row.expand(x.shape[0], 6), x.unsqueeze(0).expand(3, -1, -1)),
        "x row",
    ),
    "expand_as": (lambda x, row: (row.expand_as(x), torch.broadcast_to(row, x.shape)), "x row"),
    "slices": (
        lambda x: (x[:, 1:4], x[:, ::2], x[:, -2:], x[:, :-1], x[0], x[-1], x[:, 2], x[1:], x[:-1]),
        "x",
    ),
    "narrow": (lambda x: (x.narrow(1, 2, 3), x.select(1, -1)), "x"),
    "splits": (lambda x: (x.split(2, 1), x.chunk(4, 1), x.split([1, 2, 3], 1), x.unbind(1)), "x"),
    "joins": (
        lambda x, y: (torch.cat([x, y]), torch.cat([x, y], 1), torch.stack([x, y], 1)),
        "x x",
    ),
    "cat_promotes": (lambda x, i: torch.cat([x, i], 1), "x i"),
    "repeats": (lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), x.tile((2,)), x.repeat(1, 1)), "x"),
    "interleave": (lambda x: (x.repeat_interleave(2, 1), x.repeat_interleave(3, 0)), "x"),
    "pad": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 2, 1), value=3.0), F.pad(x, (-1, 1))),
        "x",
    ),
    "pad_mirrored": (
        lambda x: [
            F.pad(x[:, None], pad, mode=mode)
            for mode in ("reflect", "replicate", "circular")
            for pad in ((2, 3), (0, 1), (4, -2), (-1, 2), (-1, -1))
        ],
        "x",
    ),
    "pad_two_axes": (
        lambda x: [F.pad(x, (1, 3, 2, 0), mode=m) for m in ("reflect", "replicate", "circular")],
        "x3",
    ),
    "windows": (lambda x: (x.unfold(1, 3, 1), x.unfold(1, 2, 3), x.unfold(1, 6, 1)), "x"),
    "roll": (lambda x: (x.roll(1, 1), x.roll(-2, 1), torch.roll(x, (1, 2), (1, 1))), "x"),
    "flip": (lambda x: (x.flip(1), x.flip((0, 1))), "x"),
    "triangles": (
        lambda x: (x[:, :4].tril(), x.triu(1), x.tril(-1), torch.tril_indices(3, 4, 1)),
        "x",
    ),
    "shifts": (lambda i: (i << 3, i >> 1, 1 << i, torch.bitwise_right_shift(-i, i)), "i"),
    "int_powers": (lambda i: (i**4, i**7, i**0, (i**2).int() ** 13), "i"),
    "diagonal": (lambda x: (x[:, :4, :4].diagonal(0, 1, 2), x.diagonal(1, 1, 2)), "x3"),
    "dropout": (lambda x: F.dropout(x, 0.5, False).contiguous().clone(), "x"),
    # indices
    "embedding": (lambda i, x: F.embedding(i % 4, x.reshape(6, -1).mT[:, :4].mT), "i x"),
    "index_select": (lambda x: x.index_select(1, torch.tensor([3, 1, 1])), "x"),
    "gather": (lambda x, i: x.gather(1, i), "x i"),
    "take_along_dim": (
        lambda row: torch.take_along_dim(row.expand(3, 6), torch.tensor([[1], [2], [0]]), 1),
        "row",
    ),
    "index_one": (lambda x: (x[:, [0, 2, -1]], x[:, torch.tensor([[0, 1], [2, -3]])]), "x"),
    "index_two": (lambda x, i: (x[:, [0, 1, 3], [5, -1, 0]], x[[0], :, [1]]), "x3 i"),
    "one_hot": (lambda i: F.one_hot(i, 5), "i"),
    # products
    "linear": (lambda x, row: (F.linear(x, row[None]), F.linear(x, row[None], row[:1])), "x row"),
    "linear_vector": (lambda row: F.linear(row, torch.ones(3, 6, dtype=torch.float64)), "row"),
    "matmul": (lambda x, y: (x @ y.mT, x.mT @ x, x.mm(y.t()), x @ y[0], y[0] @ x.t()), "x x"),
    "matmul_batch": (lambda x, y: (x @ x.mT, x @ y[0], y[0] @ x.mT, torch.bmm(x, x.mT)), "x3 x"),
    "addmm": (lambda x, row: torch.addmm(row, x, x.t() @ x, beta=0.5, alpha=2), "x row"),
    "baddbmm": (lambda x: torch.baddbmm(x @ x.mT, x, x.mT), "x3"),
    "dot": (lambda row: (row.dot(row), torch.outer(row, row), torch.inner(row, row)), "row"),
    "einsum": (lambda x, y: torch.einsum("nk,mk->nm", x, y), "x x"),
    # norms, attention
    "layer_norm": (
        lambda x, row: (
            F.layer_norm(x, (6,), row, row),
            F.layer_norm(x, (6,)),
            F.layer_norm(x, (4, 6)),
        ),
        "x3 row",
    ),
    "rms_norm": (lambda x, row: (F.rms_norm(x, (6,), row, 1e-5), F.rms_norm(x, (6,))), "x row"),
    "group_norm": (lambda x: F.group_norm(x, 2), "x3"),
    "sdpa": (lambda q: F.scaled_dot_product_attention(q, q, q), "x4"),
    "sdpa_causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), "x4"),
    "sdpa_gqa": (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), "x4 k4"),
    "sdpa_scale": (
        lambda q: F.scaled_dot_product_attention(q, q[:, :, :1], q[:, :, :1], scale=2),
        "x4",
    ),
    "sdpa_mask": (
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=(q @ q.mT)[:, :1] > -1e9),
        "x4",
    ),
    "sdpa_bias": (lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=q @ q.mT), "x4"),
    "sdpa_no_heads": (lambda q: F.scaled_dot_product_attention(q, q, q), "x3"),
    "sdpa_unequal_causal": (
        lambda q: F.scaled_dot_product_attention(q[:, :, :1], q, q, is_causal=True),
        "x4",
    ),
    # sources
    "sources": (
        lambda x: (torch.zeros_like(x), torch.ones(x.shape[0], 2), torch.full((x.shape[0],), 3)),
        "x",
    ),
    "new": (lambda x: (x.new_zeros(2), x.new_full((x.shape[0],), 2.5), torch.full_like(x, 1)), "x"),
    "arange": (
        lambda x: (torch.arange(x.shape[0]), torch.arange(2, 8, 3), torch.arange(0, 1, 0.25)),
        "x",
    ),
    "arange_float": (lambda x: torch.arange(x.shape[0], dtype=torch.float32) * 0.5, "x"),
    "linspace": (lambda x: torch.linspace(0, 1, 5, dtype=torch.float64) + x[:, :5], "x"),
    "eye": (lambda x: torch.eye(6, dtype=torch.float64) @ x.t(), "x"),
    "sizes": (lambda x: (x * x.shape[0], x + x.shape[0] // 2, x.sum() / x.numel()), "x"),
    "fractions_of_sizes": (
        lambda x: (x * x.shape[0] ** -0.5, x * (x.shape[0] * 0.3 + 1), x.shape[0] / 4 + x),
        "x",
    ),
    "fraction_filled": (lambda x: torch.full((2,), x.shape[0] / 8, dtype=torch.float64), "x"),
    "sizes_out": (lambda x: (x.shape[0] * 2 + 1, x.shape[0] % 3), "x"),
    # decomposed by torch into the above
    "decomposed": (
        lambda x: (F.hardshrink(x), F.softshrink(x), torch.logaddexp(x, x), x.sinc()),
        "x",
    ),
    "resized": (
        lambda x: [F.interpolate(x[None], size=(3, 9), mode=m) for m in ("nearest", "bilinear")],
        "x3",
    ),
    "cdist_like": (lambda x: F.cosine_similarity(x, x.flip(1), dim=1), "x"),
    "batch_norm": (
        lambda x: F.batch_norm(x, torch.zeros(6).double(), torch.ones(6).double()),
        "x",
    ),
    "batch_norm_of_the_batch": (
        lambda x: (
            F.batch_norm(x, None, None, torch.ones(4).double(), training=True),
            F.instance_norm(x, eps=0.1),
        ),
        "x3",
    ),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), "x"),
    # in place, on views
    "in_place": (
        lambda x: (x.clone().add_(1).mul_(2), x.clone().clamp_(0), x.clone().zero_()),
        "x",
    ),
}


def write_view(x):
    y = x.clone()
    row = y[:, 1:3]
    row += 10
    y[:, 0] = 5
    flat = y.view(-1)
    flat.mul_(2)
    return y, row, flat


def write_strides(x):
    y, spread = x.clone(), x.new_zeros(x.shape[0], 4, 12)
    y[:, 1::2] = 3
    y[..., ::4] += 1
    spread[..., ::2], spread[..., 1::2] = x, -x
    y[..., :4].diagonal(0, 1, 2).mul_(2)
    y.diagonal(1, 1, 2)[:, :2] = 5
    y[3::5] *= 2
    return y, spread


CASES["in_place_views"] = (write_view, "x")
CASES["in_place_strides"] = (write_strides, "x3")


def dynamic(args):
    axes = [
        {axis: torch.export.Dim("n") for axis, size in enumerate(a.shape) if size == 5}
        for a in args
    ]
    return ([axis or None for axis in axes],)


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.parametrize("name", CASES)
def test_operation(name):
    function, kinds = CASES[name]
    module = Function(function)
    traced = [generate(kind, 5) for kind in kinds.split()]
    imported = import_module(module, traced, dynamic_shapes=dynamic(traced))
    verify(imported.graph)
    for n in SIZES:
        args = [generate(kind, n) for kind in kinds.split()]
        if "n" in imported.graph.symbols and n < imported.graph.symbols["n"].lo:
            assert imported.notes, "a narrowed range has its reason"
            continue
        expected = leaves(module(*args))
        inputs = {k: v.numpy() for k, v in imported.signature.flatten(args, {}).items()}
        outputs, _ = evaluate(imported.graph, inputs, imported.weights, precision=None)
        got = leaves(imported.signature.restore(outputs))
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            compare(ours, theirs, f"{name} at {n}")


def compare(ours, theirs, where):
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs, where
        return
    theirs = theirs.numpy()
    assert ours.dtype == theirs.dtype, where
    assert ours.shape == theirs.shape, where
    if theirs.dtype.kind == "f":
        tight = 1e-12 if theirs.dtype == np.float64 else 2e-6
        np.testing.assert_allclose(ours, theirs, rtol=tight, atol=tight, err_msg=where)
    else:
        np.testing.assert_array_equal(ours, theirs, err_msg=where)


def test_most_cases_hold_at_size_one():
    """Narrowing must stay the exception: the sizes a module allows are its own."""
    function, kinds = CASES["unary"]
    traced = [generate(kind, 5) for kind in kinds.split()]
    graph = import_module(Function(function), traced, dynamic_shapes=dynamic(traced)).graph
    assert graph.symbols["n"].lo == 1
    assert graph.symbols["n"].hi is None


def test_the_table_covers_what_models_use():
    assert len(HANDLERS) >= 250
    for name in (
        "linear",
        "scaled_dot_product_attention",
        "layer_norm",
        "rms_norm",
        "silu",
        "gelu",
    ):
        assert f"aten.{name}.default" in HANDLERS
