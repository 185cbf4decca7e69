"""`compile` on many small modules against eager: ordinary, tiny, infinite and NaN inputs.

A case is a function of many results, so that one compilation serves many comparisons.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import tilewright

INF, NAN = float("inf"), float("nan")
ZOO: dict[str, tuple] = {}  # name -> (module or function, inputs, tolerance, what is poisoned)


def case(*shapes, tol=1e-5, poison=range(9)):
    """Register a function or module; `shapes` are of float inputs, or tensors as they are.

    `poison` says which inputs get NaN and infinities: all, but where torch itself has no answer.
    """

    def register(subject):
        ZOO[getattr(subject, "__name__", type(subject).__name__)] = (subject, shapes, tol, poison)
        return subject

    return register


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def ints(low, high, *shape, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(low, high, shape, generator=generator, dtype=dtype)


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


# rows of scores that are infinite or NaN have several meanings in torch itself, values have one
@case((2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 8), MASK, (9, 11), poison=(2,))
def masked_attention(q, k, v, mask, bias):
    attention = F.scaled_dot_product_attention
    return (
        attention(q, k, v),
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


# ---- elementwise ---------------------------------------------------------------------------


@case((3, 4), (3, 4))
def choices(a, b):
    return (
        *(torch.where(a > 0, a, b), torch.where(a > 0, a, 0.0), a.masked_fill(a > 0, -1e9)),
        *(a.clamp(-0.5, 0.5), a.clamp(min=b), a.clamp(max=0.1), torch.maximum(a, b)),
        *(torch.minimum(a, b), a.isnan(), a.isinf(), a == a, a.sign(), a.round(), a.floor()),
    )


@case((3, 4), (3, 4))
def powers(a, b):
    positive = a.abs() + 0.1
    return (
        *(positive**b, b**2, b**3, positive**0.5, positive**-1, 2**b, b**0, b**1),
        *(positive.rsqrt(), a.sqrt(), a.log(), a.reciprocal(), a.exp(), a.expm1(), a.log1p()),
    )


@case((3, 4))
def activations(x):
    functions = (F.relu, F.silu, F.elu, F.selu, F.softplus, F.mish, F.hardswish, F.hardsigmoid)
    more = (F.leaky_relu, torch.sigmoid, torch.tanh, F.relu6, F.softsign, F.hardtanh, F.celu)
    return [function(x) for function in functions + more]


@case((3, 4), poison=())  # torch's own gelu of infinity depends on its vector path
def gelus(x):
    return F.gelu(x), F.gelu(x, approximate="tanh"), torch.erf(x)


@case((3, 4), (3, 4))
def remainders(a, b):
    return (
        *(a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc")),
        *(torch.remainder(a, 3.0), torch.remainder(a, -3.0), a / b),
    )


@case(ints(-9, 9, 3, 4), torch.tensor([2, -3, 4, -1]), ints(1, 9, 3, 4, dtype=torch.int32))
def integers(x, d, y):
    return (
        *(x // d, x % d, torch.fmod(x, d), torch.div(x, d, rounding_mode="trunc"), x / d),
        *(-x, x.abs(), x * x, x.sum(), x.max(1), x.clamp(-2, 3), x.cumsum(1)),
        *(y & 6, y | 6, y ^ 6, ~y, y + 1.5, y.sum(), y * x, (y > x).sum(), x.sum(1) / x.shape[1]),
    )


@case(
    torch.tensor([127, -128, 100], dtype=torch.int8),
    torch.tensor([200, 255, 0], dtype=torch.uint8),
    torch.tensor([2**62, 2**53 + 1, -(2**63)]),
)
def overflows(a, b, c):
    return (
        *(a + a, a * a, -a, a.abs(), a // 3, a % 7, a.sum(), a + b, a.float()),
        *(b + b, b * b, -b, b - (b + 1), b // 7, b % 7, b.sum(), b.to(torch.int8)),
        *(c + 1, c * 2, c // 3, c % 5, c > 2**53, c == 2**53 + 1, c.max(), c.sum(), c.double()),
    )


BOOLS = ints(0, 2, 3, 4) > 0


@case(BOOLS, ints(0, 2, 3, 4) > 0)
def booleans(a, b):
    return (
        *(a & b, a | b, a ^ b, ~a, a.any(1), a.all(0), a.any(), a.sum(), a.cumsum(0)),
        *(a.float().mean(), torch.where(a, 1.0, 2.0), a * 2, a + b, a.to(torch.float16)),
    )


@case((6, 5), torch.ones(6, 5).double(), ints(0, 4, 6, 5), torch.ones(6, 5).half(), tol=2e-2)
def mixed_dtypes(a, b, i, h):
    f = a.bfloat16()
    finite = torch.where(a.isfinite(), a, 0.5)  # other floats as integers are each machine's own
    return (
        *(a + b, a * i, h + a, f + h, f * 2, i * 2.5, i / 2, h * i, a > i, h == f),
        *(
            finite.to(torch.int32),
            finite.long(),
            a.half(),
            f.softmax(-1),
            h.sum(0),
            F.silu(f),
            f @ f.T,
        ),
    )


# ---- views and indices ---------------------------------------------------------------------


@case((6, 8, 5))
def views(x):
    return (
        *(x[::2], x[1:-1, ::3], x[:, 2], x[..., -1], x.transpose(0, 2)[1:], x[5:2], x[100:]),
        *(x.permute(2, 0, 1).reshape(5, -1), x.unsqueeze(1), x.flatten(1), x[0].t().reshape(-1)),
        *(
            x.view(3, 2, 40).transpose(0, 1).flatten(),
            x[..., None, :],
            x.narrow(1, 2, 3),
            x.flip(0),
        ),
    )


@case((3, 4), (3, 4))
def joins(a, b):
    return (
        *(torch.cat([a, b]), torch.cat([a, b[:, :1], a], -1), torch.stack([a, b], 1)),
        *(a.split(2, 1), a.chunk(3, 1), a.split([1, 3], 1), torch.hstack([a, b])),
        *(F.pad(a, (1, 2)), F.pad(a, (0, 0, 1, 1), value=3.0), F.pad(a, (-1, 1)), a.roll(2, 1)),
        *(a.repeat(2, 3), a.repeat_interleave(2, 0), a.tile(2), a.expand(2, 3, 4)),
    )


@case((3, 4))
def many_pieces(x):
    """More pieces than a loop is cut for, and in the last one a choice outside the loop's axis."""
    column = torch.cat([x[:1] * 3, x[1:]])[:, :1]
    parts = [x + k for k in range(4)]
    return torch.cat([*parts, (column * 2).expand(-1, 3)], 1)


@case((2, 4, 6))
def running_sums_and_their_views(x):
    sums = x.cumsum(2)
    return sums, sums.transpose(0, 1).reshape(8, 6), x.cumsum(0).flatten()


@case((6, 4), torch.tensor([0, 3, 5, 2]), torch.tensor([0, -1, -6, 2]), ints(0, 4, 6, 2))
def indices(x, i, negative, columns):
    return (
        *(x.index_select(0, i), x[i], x[negative], x.gather(1, columns), x[i, i % 4], x[:, i % 4]),
        *(x[i][:, :2], x[i.unsqueeze(1), i % 4], x.tril(), x.triu(1), x.tril(-1)),
        torch.tril(torch.ones(4, 4)),
    )


@case((3, 1, 4), (2, 1), (1,), ())
def broadcasts(a, b, c, d):
    return (
        *(a + b, a * c + d, d + c, torch.maximum(a, b), (a + b).expand(5, 3, 2, 4), d * 2),
        *((a * b).sum((1, 2)), (a + b).amax(0), d.exp(), d.reshape(1), d.expand(4), d.sum()),
    )


@case(())
def numbers(x):
    return (
        *(x.sum(0), x.max(0), x.argmax(-1), x.softmax(0), x.log_softmax(0), x.cumsum(0)),
        *(x.logsumexp(0), x.flip(0), x.transpose(0, 0), x.index_select(0, torch.tensor([0]))),
        *(x.unsqueeze(0).expand(4), x * 2, x.exp(), x.reshape(1, 1)),
    )


@case((4, 6))
def in_place(x):
    y = x.clone()
    y[1:3] += 1
    y[:, 0] = 5
    y.mul_(2)
    y[0].zero_()
    z = y.view(-1)
    z[3:7] = -1
    return y, z


@case((3, 4))
def structures(x):
    inner = {"b": (x, None, [x * 2, x]), "c": 3, "d": "text"}
    return {"a": x + 1, "same": x, "view": x.t(), "inner": inner, "nothing": None}


@case((3, 4))
def sizes(x):
    return (
        *(x.shape[0] * x, x / x.numel(), x.shape[1], torch.full((x.shape[0],), x.shape[1])),
        *(torch.arange(x.shape[1]), torch.zeros(x.shape[0], 2) + 1),
    )


# ---- the tests -----------------------------------------------------------------------------


def build(subject):
    return (subject if isinstance(subject, nn.Module) else Function(subject)).eval()


def inputs_of(shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return [
        s if isinstance(s, torch.Tensor) else torch.randn(s, generator=generator, dtype=dtype)
        for s in shapes
    ]


def poisoned(x: torch.Tensor) -> torch.Tensor:
    """NaN and both infinities among the values."""
    y = x.clone().reshape(-1)
    for place, value in ((3, INF), (7, -INF), (11, NAN)):
        if place < len(y):
            y[place] = value
    return y.reshape(x.shape)


def compare(compiled, module, inputs, tol):
    """Eager is torch on the CPU, wherever the compiled module runs."""
    # of torch's own ways to attend, the written-out one is the definition
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        expected = module(*(x.clone() for x in inputs))
    got = compiled(*inputs)
    leaves, spec = pytree.tree_flatten(got)
    wanted, wanted_spec = pytree.tree_flatten(expected)
    assert spec == wanted_spec
    for place, (ours, theirs) in enumerate(zip(leaves, wanted, strict=True)):
        if isinstance(theirs, torch.Tensor):
            said = lambda text, at=place: f"result {at}: {text}"  # noqa: E731
            ours = ours.cpu()
            torch.testing.assert_close(ours, theirs, rtol=tol, atol=tol, equal_nan=True, msg=said)
        else:
            assert (type(ours), ours) == (type(theirs), theirs), place


@pytest.mark.parametrize("name", ZOO)
def test_results_are_those_of_eager(name, device, slack):
    subject, shapes, tol, poison = ZOO[name]
    tol *= slack
    torch.manual_seed(0)
    module = build(subject)
    compiled = tilewright.compile(module, target=device)
    inputs = inputs_of(shapes)
    compare(compiled, module, inputs, tol)
    floats = [not isinstance(s, torch.Tensor) for s in shapes]
    small = [x * 1e-3 if scale else x for x, scale in zip(inputs, floats)]
    compare(compiled, module, small, tol)
    wanted = [place for place in poison if place < len(floats) and floats[place]]
    if wanted:
        bad = [poisoned(x) if place in wanted else x for place, x in enumerate(inputs)]
        compare(compiled, module, bad, tol)
    assert len(compiled.variants) == 1


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
