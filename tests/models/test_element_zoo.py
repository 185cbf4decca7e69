"""`compile` on many small functions against eager: elementwise, views, indices and sizes."""

import pytest
import torch
import torch.nn.functional as F

from .zoo import Zoo, check, ints

ZOO = Zoo()
case = ZOO.case


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


@pytest.mark.parametrize("name", ZOO)
def test_results_are_those_of_eager(name, device, slack):
    check(ZOO[name], device, slack)
