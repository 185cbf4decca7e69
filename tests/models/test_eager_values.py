"""Values at the edges of numbers and of shapes, to the bit where eager's own are exact.

Many small functions are compiled as one program: starting the compiler costs more than they do.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright
from tilewright.ir.errors import TilewrightError

from .eager import NARROW, check, module, same

INF, NAN = math.inf, math.nan
LOW, TOP = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
FLOATS = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, -7.75, 1e30, -1e30, INF, -INF, NAN])
WHOLE = torch.tensor([LOW, LOW + 1, -9, -1, 0, 1, 8, TOP - 1, TOP])
DTYPES = (*NARROW, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16)
DTYPES = (*DTYPES, torch.int8, torch.uint8, torch.bool)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def test_quotients_and_remainders_of_floats():
    def function(a, b):
        results = []
        for x, y in ((a, 3.0), (a, -2.5), (a, INF), (a[:, None], b)):
            results += [torch.fmod(x, y), torch.remainder(x, y)]
        results += [torch.div(a, 3.0, rounding_mode=m) for m in ("trunc", "floor")]
        return results

    check(function, FLOATS, torch.tensor([4.0, -3.0, 0.5]))
    check(function, FLOATS.double(), torch.tensor([4.0, -3.0, 0.5]).double())


def test_quotients_and_remainders_of_integers():
    def function(a, b, c, d):
        results = []
        for x, y in ((a, 7), (a, -5), (a[:, None], b), (c, 6), (c, -6), (d, 7)):
            results += [torch.div(x, y, rounding_mode=m) for m in ("trunc", "floor")]
            results += [torch.fmod(x, y), torch.remainder(x, y)]
        return results

    small = torch.arange(-128, 128, dtype=torch.int8)
    check(function, WHOLE, torch.tensor([3, -2, LOW, TOP]), small, torch.arange(256).byte())


def test_numbers_meet_narrow_floats_as_in_torch():
    third = 1 / 3
    wide = torch.tensor(third, dtype=torch.float64)

    def function(a, b, scale):
        results = []
        for x in (a, b):
            results += [x * third, x / third, x * wide, x * scale, x / scale, x + third, x - third]
            results += [x > third, x == third, x.clamp(min=third)]
            results += [torch.where(x > 0, x, third), x.masked_fill(x > 0, third), x.fmod(third)]
            results += [torch.addcmul(x, x, x, value=third), F.leaky_relu(x, third)]
            results += [torch.full((3,), 0.1, dtype=x.dtype).float(), x * 1e10, x + 1e10]
        return results

    a = torch.cat([torch.randn(300), torch.tensor([third, 0.0, INF, NAN])])
    check(function, a.half(), a.bfloat16(), wide)


def test_a_cast_rounds_its_own_value_only():
    def function(a, b, c):
        small, wide = c.bfloat16(), a.half() * b.half()
        results = [a.half() + small, small + a.half(), a * small, a - c.half(), small < a]
        results += [torch.where(a > b, a.half(), small), torch.maximum(a, small)]
        # eager rounds the product, we do not: on either side of the sum it is the same number
        return [*results, (wide + c.half() == c.half() + wide).all()]

    check(function, torch.randn(300), torch.randn(300), torch.randn(300))


def test_floats_there_and_back_through_integers():
    def function(*xs):
        whole = (torch.int64, torch.int32, torch.int16, torch.uint8)
        results = [x.to(d).to(x.dtype) for x in xs for d in whole]
        results += [x.long().int().to(x.dtype) for x in xs]
        return [*results, *(x.long().bfloat16() for x in xs), *(x.long() * 1.0 for x in xs)]

    numbers = torch.cat([FLOATS, torch.tensor([-0.3, 0.7, 3e9, -3e9, 1e19, 2.0**53 + 2])])
    check(function, numbers, numbers.double(), numbers.half())


def test_the_first_of_equal_numbers_is_kept():
    def function(x):
        results = [F.relu(x), x.clamp(min=0.0), x.clamp(max=-0.0), F.hardtanh(x, 0.0, 1.0)]
        return [*results, x.clamp(torch.tensor(0.0), torch.tensor(-0.0)), F.relu6(x)]

    check(function, torch.cat([FLOATS, torch.tensor([0.0, -0.0] * 20)]))


def test_what_torch_computes_in_other_steps():
    def function(x, here):
        ranges = [torch.arange(0, 1.2, 0.1), torch.arange(0.3, 5, dtype=torch.float16)]
        ranges += [torch.arange(0.5, 7.5, 1.5, dtype=torch.int32), torch.arange(7.0).long()]
        ranges += [torch.linspace(2.5, -3, n) for n in (1, 2, 7)]
        ranges += [torch.linspace(-3, 8.5, n, dtype=torch.int64) for n in (1, 4, 9)]
        ranges += [torch.linspace(0, 1, 50, dtype=torch.float16)]
        decimals = [x.round(decimals=n) for n in (2, 0, -1)]
        # 4.1484375 * 10 lies beside a half in float32, and on it in float16
        narrow = (x / 60 + 4.1484375).half()
        decimals += [y.round(decimals=n) for y in (narrow, narrow.bfloat16()) for n in (1, 2, 5)]
        big = [F.hardswish(here), F.hardsigmoid(here), torch.fmax(x, here), torch.fmin(here, x)]
        return [*ranges, *decimals, *big]

    x = torch.linspace(-30, 30, len(FLOATS))
    check(function, x, torch.cat([FLOATS[:-1], torch.tensor([3.4e38])]))


def test_integers_are_shifted_and_raised():
    def function(by, *xs):
        results = []
        for x in xs:
            results += [x << 3, x >> 2, x << 63, x >> 63, x >> 7, x**5, x**0, x**12]
            results += [x[:, None] << by.to(x.dtype), x[:, None] >> by.to(x.dtype), 3 << x]
        return results

    by = torch.tensor([0, 1, 2, 5, 7, 8, 15, 31, 40, 62, 63, 64, 100, -1])
    values = torch.tensor([LOW, -77, -1, 0, 1, 6, 100, TOP])
    check(function, by, *(values.to(d) for d in INTEGERS))


def test_integers_wrap_as_numbers_do():
    def function(a, b):
        return [a + 1000, a * 300, a > 1000, b * -3, b == 300, torch.full((2,), 0.1).double()]

    check(function, torch.arange(-5, 5, dtype=torch.int8), torch.arange(9).byte())


def test_every_rounding_of_the_module_happens():
    def function(a, b):
        square, product = a * a, a * b
        return [
            *(square - b * b, product + square, product - b * a * 0.75, a * 1.3 - b * 0.7),
            *((product.half().float() - product), product.bfloat16().float() * b + a),
            *(torch.lerp(a, b, 1.0), torch.lerp(a, b, 0.0), torch.linspace(-0.1, 0.7, 11)[-1:]),
            ((a + 1e8) - 1e8),
        ]

    check(function, torch.randn(999), torch.randn(999))


def test_powers_and_logarithms_are_exact_where_they_are_whole():
    def function(x, twos, tens):
        values = [torch.exp2(x), torch.log2(twos), torch.log10(tens)]
        return [*values, torch.exp2(x.double()), torch.threshold(FLOATS, 0.5, -3.0)]

    twos = torch.exp2(torch.arange(-140.0, 128.0))
    tens = torch.tensor([float(10**k) for k in range(11)])
    check(function, torch.arange(-149.0, 129.0), twos, tens)


def test_casts_between_all_dtypes():
    edges = [448.0, 449.0, 464.0, 465.0, 480.0, 57344.0, 61439.0, 61440.0, 65519.0, 65520.0, 300.0]
    edges += [2.0**-k for k in (9, 10, 14, 16, 17, 24, 25)] + [3 * 2.0**-10, 3 * 2.0**-17]
    edges += [127.5, 128.0, 255.0, 256.0, 32768.0, 2.0**31, 2.0**63, 1e19, 1e300]
    numbers = torch.cat([FLOATS.double(), torch.tensor(edges), torch.randn(99).double() * 20])
    numbers = torch.cat([numbers, -numbers])
    check(lambda *xs: [x.to(d) for x in xs for d in DTYPES], *(numbers.to(d) for d in DTYPES))


def test_narrow_constants_are_cast_without_warnings():
    def function(x):
        made = [torch.full((2,), v) for v in (INF, NAN, 1e30, -2.7)]
        return [x, *(v.to(d) for v in made for d in (torch.int64, torch.float64, torch.float16))]

    check(function, torch.zeros(2))


def test_operations_in_place_reach_what_they_alias():
    def function(x):
        F.dropout(x, 0.5, False).add_(1.0)
        F.alpha_dropout(x.flatten(), 0.2, False).mul_(3.0)
        for view in (
            x.contiguous(),
            x.to(x.dtype),
            x.reshape(6),
            x.expand_as(x),
            torch.positive(x),
        ):
            view.sub_(0.25)
        return [x * 2]

    compiled = check(function, torch.randn(6))
    given = np.ones(6, np.float32)
    compiled(given)
    np.testing.assert_array_equal(given, np.full(6, 4.75, np.float32))


def test_rows_from_a_start_in_a_tensor():
    def function(x, start):
        return [x.narrow(1, start, 2), torch.narrow(x, dim=0, start=start - 5, length=1)]

    compiled = check(function, torch.randn(4, 6), torch.tensor(3))
    for start in (2, 4):
        same(function, compiled, torch.randn(4, 6), torch.tensor(start))


def test_shapes_of_indexing_and_rolling():
    def function(x, row, column, flat, none, number):
        return [
            *(torch.take_along_dim(x, i, 1) for i in (row, column)),
            *(torch.take_along_dim(x, flat), torch.take_along_dim(x[:1], column, 0)),
            *(torch.roll(none, 2, 0), torch.roll(none, 1, 1), torch.roll(none, 3)),
            *(torch.roll(x, (5, -7), (0, 1)), torch.roll(x, 100), torch.roll(number, 3)),
            torch.transpose_copy(number, 0, 0),
        ]

    row, column = torch.tensor([[2, 0, 1, 1, 3]]), torch.tensor([[0], [0], [0]])
    x, none = torch.randn(3, 4), torch.zeros(0, 3)
    check(function, x, row, column, torch.tensor([11, 0, 5]), none, torch.tensor(2.0))


def test_products_over_every_rank():
    def function(number, vector, matrix, batch, weight):
        inner = [torch.inner(a, b) for a in (matrix, batch, vector) for b in (vector, matrix)]
        inner += [torch.inner(number, matrix), torch.inner(vector, batch)]
        products = [vector @ vector, matrix @ vector, vector @ matrix.T, batch @ vector]
        products += [batch @ matrix.T, torch.tensordot(batch, matrix, ([2], [1]))]
        products += [torch.einsum("bij,kj->bik", batch, matrix), torch.kron(matrix, vector)]
        both = [F.bilinear(vector, vector, weight), F.bilinear(matrix, matrix, weight)]
        return [
            *inner,
            *products,
            *both,
            F.bilinear(batch, batch, weight),
            F.linear(vector, vector),
        ]

    args = [torch.randn(s).double() for s in ((), (4,), (3, 4), (2, 3, 4), (5, 4, 4))]
    check(function, *args, rtol=1e-12, atol=1e-12)
    large = torch.tensor([[2**40, -(2**41)], [3, LOW]])
    check(lambda x: [x @ x, x[0] @ x[1]], large)


def test_rolled_and_split_dynamic_axes():
    def function(x):
        half = x[: (x.shape[0] + 1) // 2] * 1.0
        return [x.roll(1, 0), x.roll(-70, 0), x.roll((2, 3), (0, 1)), x.flip(0), half]

    rows = torch.export.Dim("rows", min=2, max=64)
    example = (torch.randn(4, 5),)
    shapes = {"args": ({0: rows},)}
    compiled = tilewright.compile(module(function), example, dynamic_shapes=shapes, target="cpu")
    for count in (2, 3, 7, 64):
        same(function, compiled, torch.randn(count, 5))


@pytest.mark.parametrize("is_float", [False, True])
def test_rows_that_see_nothing(is_float):
    keep = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    added = torch.zeros(3, 3).masked_fill(~keep, -INF)

    def function(q, k, v, mask):
        fused = F.scaled_dot_product_attention(q, k, v, mask)
        scores = q @ k.mT
        masked = scores + mask if is_float else scores.masked_fill(~mask, -INF)
        weights = torch.softmax(masked, -1)
        finite = torch.softmax(scores.masked_fill(~keep, torch.finfo(q.dtype).min), -1)
        causal = torch.ones(3, 3, dtype=torch.bool).tril()
        seen = torch.softmax(scores.masked_fill(~causal, -INF), -1)
        fewer = F.scaled_dot_product_attention(q, k[..., :2, :], v[..., :2, :], is_causal=True)
        return [fused, weights @ v, weights.nan_to_num(0.0) @ v, finite @ v, seen @ v, fewer]

    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    compiled = tilewright.compile(module(function), (q, k, v, added if is_float else keep))
    got = compiled(q, k, v, added if is_float else keep)
    want = module(function)(q, k, v, added if is_float else keep)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


def softmaxes(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return x.softmax(-1), e / e.sum(-1, keepdim=True)


def test_softmax_is_near_to_an_element():
    """Every probability by itself, small ones too; exactly 1 / n where all are equal."""
    x = torch.randn(40, 999, generator=torch.Generator().manual_seed(2)) * 8
    compiled = tilewright.compile(module(softmaxes), (x,), target="cpu")
    want = (x - x.amax(-1, keepdim=True)).double().softmax(-1)
    for got in compiled(x):
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-37)
    for got in compiled(x * 0 + 5):
        assert torch.equal(got, torch.full_like(x, 1 / 999))
    for row, value in enumerate((-INF, INF, NAN)):
        x[row, 7] = value
    x[3] = -INF
    for got in compiled(x):
        assert torch.equal(got.isnan(), x.softmax(-1).isnan())


def gradient(x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad((x * x).sum(), x)[0]


REFUSED = {
    "draws random numbers": torch.bernoulli,
    "computes gradients in its forward method": gradient,
    "depends on the values": lambda x: x[: int(x.sum())],
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_supported_is_refused_by_name(words):
    with pytest.raises(TilewrightError, match=words):
        tilewright.compile(module(REFUSED[words]), (torch.eye(3),), target="cpu")
