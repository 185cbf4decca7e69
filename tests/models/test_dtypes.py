"""Every dtype against eager: each cast, alone and there and back, and what integers compute."""

from itertools import permutations

import pytest
import torch
from torch import nn

import tilewright

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (*FLOATS, *FLOAT8, *INTEGERS, torch.bool)


class Program(nn.Module):
    """A function of inputs, one a dtype, that gives many results."""

    def __init__(self, function, dtypes):
        super().__init__()
        self.function, self.dtypes = function, dtypes

    def forward(self, *inputs):
        return tuple(self.function(dict(zip(self.dtypes, inputs))))


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Ties of every float, subnormals of float8, no number that an integer leaves undefined."""
    if dtype == torch.bool:
        return torch.arange(40) % 3 == 0
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        near = torch.arange(-20, 17).to(dtype)  # wraps where the dtype has no sign
        ends = [info.min, info.max, min(info.max, 2**33 + 1)]
        return torch.cat([near, torch.tensor(ends, dtype=dtype)])
    generator = torch.Generator().manual_seed(5)
    some = torch.randn(18, generator=generator, dtype=torch.float64) * 30
    small = torch.arange(1, 12, dtype=torch.float64) * 2.0**-10
    ties = torch.tensor([0.0, -0.0, 0.5, 1.5, -2.5, 17, 19, -21, 1 + 2**-9, 1 + 2**-12, 1 + 2**-25])
    return torch.cat([some, small, ties.double()]).to(dtype)


def equal(compiled, program: Program, inputs: list[torch.Tensor]) -> list[str]:
    """The results that are not eager's to the bit, by number."""
    wrong = []
    got = compiled(*inputs)
    for number, (ours, theirs) in enumerate(zip(got, program(*inputs), strict=True)):
        ours = ours.cpu()
        assert ours.dtype == theirs.dtype
        if theirs.dtype in FLOAT8:
            ours, theirs = ours.float(), theirs.float()
        if not torch.equal(ours, theirs):
            wrong.append(f"{number}: {ours} is not {theirs}")
    return wrong


def test_every_cast_rounds_as_eager_does(device):
    def casts(given):
        for source, target in permutations(DTYPES, 2):
            x = given[source]
            if target == torch.float8_e4m3fn and source in INTEGERS:
                x = x[:-3]  # beyond 448 torch gives 448 or NaN, by processor and source
            there = x.to(target)
            yield there
            # numbers that a float made infinite come back as what the machine makes of them
            if source.is_floating_point or not target.is_floating_point:
                yield there.to(source)

    program = Program(casts, DTYPES)
    compiled = tilewright.compile(program, target=device)
    assert not equal(compiled, program, [numbers(d) for d in DTYPES])


@pytest.fixture(scope="module")
def operands():
    """Matrices of every integer dtype: numbers up to its ends, so that products and sums wrap."""
    generator = torch.Generator().manual_seed(6)
    made = []
    for dtype in INTEGERS:
        info = torch.iinfo(dtype)
        made.append(torch.randint(info.min, info.max, (9, 9), generator=generator, dtype=dtype))
    return made


def test_integers_wrap_as_eager_does(device, operands):
    def computed(given):
        for x in given.values():
            y = x.T
            yield from (x + y, x - y, x * y, -x, x.abs(), x & y, x | ~y, x ^ y, x.relu())
            yield from (torch.minimum(x, y), torch.maximum(x, y), x * 3 - 1, (x * y) // 7, x % 5)
            yield from (x // (y | 1), x % (y | 1), x < y, x == y, torch.where(x < y, x, 2))
            yield from (x.sum(1), x.sum(0, dtype=x.dtype), x.amax(1), x.amin(0), x.argmax(1))
            yield from (x.prod(1), x.cumsum(1), x.argmin(0), (x > 0).any(1), x.flip(0), x[:, ::2])

    program = Program(computed, INTEGERS)
    assert not equal(tilewright.compile(program, target=device), program, operands)


def test_products_of_integers_wrap_before_they_are_read(device, operands):
    """Sums in a wider integer must not show: neither in the result, nor in what is made of it."""

    def computed(given):
        for x in given.values():
            y = x @ x.T
            yield from (y, y.double(), y.to(torch.int64) + 1, y // 3, x[:1] @ x, x[0] @ x[1])
            yield from (x[:0].T @ x[:0], torch.stack([x, x]) @ torch.stack([y, x]))

    program = Program(computed, INTEGERS)
    assert not equal(tilewright.compile(program, target=device), program, operands)


def test_a_product_of_what_was_rounded_is_summed_in_its_own_precision(device, slack):
    """Casts on the way to a product say how its operands are rounded, not how it is summed."""

    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(24, 40, generator=torch.Generator().manual_seed(1)))

        def forward(self, x, half, single):
            w, wide = self.w.T, self.w.double().T
            rounded = ((x * 1.1).to(t).float() @ w for t in (torch.bfloat16, *FLOAT8))
            narrow = (half.float() @ w, x @ w.bfloat16().float(), x.half().float() @ w)
            return *rounded, *narrow, single.double() @ wide, (single.double() * 1.1) @ wide

    module = Rounded().eval()
    inputs = [torch.randn(5, 40), torch.randn(5, 40).bfloat16(), torch.randn(5, 40)]
    compiled = tilewright.compile(module, target=device)
    for rows in (1, 5):
        given = [x[:rows] for x in inputs]
        got, wanted = compiled(*given), module(*given)
        for ours, theirs in zip(got, wanted, strict=True):
            bound = 1e-13 if theirs.dtype == torch.float64 else 2e-6 * slack
            scale = theirs.abs().max().item()
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=bound * scale)
