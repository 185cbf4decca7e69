"""`compile` on many small modules against eager: contractions, attention, norms, reductions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright

from .zoo import INF, Zoo, check, compare, inputs_of, ints

ZOO = Zoo()
case = ZOO.case


# ---- contractions and attention ------------------------------------------------------------


@case((37, 129), (67, 129), (129, 45))
def products(x, w, v):
    return x @ w.T, x @ v, F.linear(x, w), (x @ w.T).relu() + 1


@case((3, 4), (4, 5), (2, 3, 4), (2, 4, 6))
def einsums(a, b, c, d):
    return (
        torch.einsum("ij,jk->ik", a, b),
        torch.einsum("bij,bjk->bik", c, d),
        torch.einsum("ij->ji", a),
        torch.einsum("ij,ij->", a, a),
        torch.einsum("bij,bjk->ki", c, d),
    )


MASK = ints(0, 3, 2, 1, 9, 11) > 0


# Rows of scores that are infinite or NaN have several meanings in torch itself, and so have values
# that a mask hides, which weigh 0 or are not read. Values that are seen have one.
@case((2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 8), poison=(2,))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@case((2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 8), MASK, (9, 11), poison=())
def masked_attention(q, k, v, mask, bias):
    attention = F.scaled_dot_product_attention
    return (
        attention(q, k, v, is_causal=True),
        attention(q, k, v, attn_mask=mask),
        attention(q, k, v, attn_mask=bias, scale=0.3),
        attention(q[0, 0], k[0, 0], v[0, 0]),
        attention(q, k, v, attn_mask=torch.zeros(9, 11, dtype=torch.bool)),
    )


@case((2, 9, 8), (2, 9, 8), (2, 9, 8), torch.tensor([4, 9]))
def padded_attention(q, k, v, lengths):
    scores = q @ k.transpose(-1, -2) / 8**0.5
    mask = torch.arange(k.shape[1])[None, None, :] >= lengths[:, None, None]
    return scores.masked_fill(mask, -INF).softmax(-1) @ v


@case((1, 8, 9, 16), (1, 2, 9, 16), (1, 2, 9, 16))
def grouped_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(16, 4, batch_first=True)
        self.second = nn.MultiheadAttention(16, 2)

    def forward(self, x, padding, causal):
        y, weights = self.first(x, x, x, key_padding_mask=padding)
        z = self.second(y, y, y, need_weights=False, attn_mask=causal)[0]
        return y, weights, z


PADDING = torch.arange(7)[None] >= torch.tensor([7, 4, 6])[:, None]
CAUSAL = torch.triu(torch.full((3, 3), -INF), 1)
case((3, 7, 16), PADDING, CAUSAL)(MultiHead())


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        options = dict(d_model=16, nhead=4, dim_feedforward=32, batch_first=True)
        self.first = nn.TransformerEncoderLayer(**options, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoderLayer(**options)
        self.decoder = nn.TransformerDecoderLayer(**options)

    def forward(self, x, memory):
        return self.decoder(self.encoder(self.first(x)), memory)


case((2, 6, 16), (2, 5, 16), poison=())(Transformer())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


case(ints(0, 11, 2, 3))(Tied())


# ---- norms, softmax, reductions ------------------------------------------------------------


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.LayerNorm([3, 4, 5])
        self.plain = nn.LayerNorm([4, 5], elementwise_affine=False)
        self.rms, self.group = nn.RMSNorm(5), nn.GroupNorm(3, 3)
        self.batch = nn.BatchNorm1d(20)

    def forward(self, x):
        mean = x.mean((0, 1), keepdim=True)
        var = x.var((0, 1), unbiased=False, keepdim=True)
        return (
            *(self.last(x), self.plain(x), self.rms(x), self.group(x)),
            self.batch(x.flatten(0, 1).flatten(1)),
            (x - mean) / torch.sqrt(var + 1e-5),
            x / x.norm(dim=1, keepdim=True),
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
        )


case((2, 3, 4, 5))(Norms())


@case((3, 4, 5))
def softmaxes(x):
    return x.softmax(0), x.softmax(1), x.softmax(-1), x.log_softmax(1), x.logsumexp(2)


@case((3, 4, 5))
def sums(x):
    return (
        *(x.sum(), x.sum(0), x.sum((0, 2), keepdim=True), x.mean((0, 1)), x.prod(0)),
        *(x.var(), x.std((0, 2)), x.norm(), x.norm(dim=(0, 1))),
        *(x.cumsum(0), x.cumsum(-1), x.cumsum(1)),
    )


@case((3, 4, 5), poison=())  # torch's mean of infinity is NaN here, as its sums are corrected
def var_means(x):
    return torch.var_mean(x, dim=0), torch.var_mean(x, (1, 2), correction=0, keepdim=True)


@case((3, 4, 5))
def extremes(x):
    return (
        *(x.amax((0, 2)), x.amin(0), x.max(), x.max(1), x.min(0).indices, x.argmax(), x.argmin(1)),
        *((x > 0).any(1), (x > 0).all(0), (x > 0).sum(2)),
    )


@case(torch.zeros(0, 4), torch.zeros(3, 0), torch.zeros(0, 2))
def empties(x, y, z):
    return (
        *(x.sum(0), x.sum(), y.sum(1), x.prod(0), x.mean(0), x.any(0), x.all(0), y @ z),
        *(x.softmax(-1), x * 2, x @ x.T, F.layer_norm(x, (4,)), torch.cat([x, x + 1])),
    )


# ---- the tests -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO)
def test_results_are_those_of_eager(name, device, slack):
    check(ZOO[name], device, slack)


@pytest.mark.parametrize("names", [("masked_attention", "products"), ("softmaxes", "sums")])
def test_float64_is_computed_in_float64(names, device):
    subjects = [ZOO[name] for name in names]
    counts = [len(shapes) for _, shapes, _, _ in subjects]

    class Both(nn.Module):
        def forward(self, *args):
            first, second = (subject for subject, *_ in subjects)
            return first(*args[: counts[0]]), second(*args[counts[0] :])

    inputs = inputs_of([s for _, shapes, _, _ in subjects for s in shapes], torch.float64)
    compare(tilewright.compile(Both(), target=device), Both(), inputs, 1e-12)


def test_one_program_for_batch_and_length(device, slack):
    """Attention, a norm and sizes used as values, both axes dynamic; the edges of the ranges."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
            self.norm = nn.LayerNorm(16)

        def forward(self, x):
            b, s, _ = x.shape
            mask = torch.triu(torch.ones(s, s, dtype=torch.bool), 1)
            y = self.norm(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])
            return y, y.cumsum(1), y.flatten(0, 1).sum(0) / (b * s), y[:, -1], y[:, ::2].amax(1)

    torch.manual_seed(0)
    module = Block().eval()
    batch, length = torch.export.Dim("b", min=1, max=8), torch.export.Dim("s", min=1, max=70)
    compiled = tilewright.compile(
        module, (torch.randn(2, 5, 16),), dynamic_shapes={"x": {0: batch, 1: length}}, target=device
    )
    for shape in [(1, 1), (1, 2), (8, 70), (3, 33), (2, 64)]:
        compare(compiled, module, [torch.randn(*shape, 16)], 2e-5 * slack)
    assert len(compiled.variants) == 1
