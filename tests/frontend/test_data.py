"""Numbers and sizes that are read from data, in modules compiled for the CPU, vs eager."""

import pytest
import torch
import torch.nn.functional as F

import tilewright
from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import DimError, ShapeError, UnsupportedModel

from ..models.zoo import Function


def compare(function, *calls):
    module = Function(function).eval()
    compiled = tilewright.compile(module, calls[0], target="cpu")
    for args in calls:
        for got, wanted in zip(compiled(*args), module(*args), strict=True):
            torch.testing.assert_close(got, wanted, equal_nan=True)
            assert type(got) is type(wanted)


def numbers(x, n):
    n = n.item()
    return x * n + n, x.clamp(max=n), torch.full((2,), n), x.add(x, alpha=n), n


def test_numbers_of_any_sign_and_kind():
    x = torch.randn(3)
    compare(numbers, *((x, torch.tensor(n)) for n in (-4, 0, 7)))
    compare(numbers, *((x.half(), torch.tensor([n])) for n in (-1.75, 3.5)))
    compare(lambda x, n: (x * n.item(), n.item()), *((x, torch.tensor(n)) for n in (True, False)))


def test_arithmetic_with_numbers_of_data():
    def whole(x, n):
        n = n.item()
        return x + (2 * n - 7) // 3, x * (n % 5), x - n**3, x * (n / 2), -n

    def fractions(x, n):
        n = n.item()
        return x * (n + 1.5) ** 2 - n / 3, F.celu(x, n)

    x = torch.randn(3).double()
    compare(whole, *((x, torch.tensor(n)) for n in (-5, 2)))
    compare(fractions, *((x, torch.tensor(n)) for n in (-5.25, 0.5)))


def test_an_index_that_is_read_from_a_tensor():
    def pick(x, i):
        n = i.item()
        return x[i], x[:, i, None], x.select(1, n), x.select_scatter(x[0], 0, n)

    x = torch.arange(9.0).view(3, 3)
    compare(pick, *((x, torch.tensor(i)) for i in (2, 0, -3)))


@pytest.mark.parametrize("cut", [lambda x, n: x[: n.item()], lambda x, n: x.roll(n.item())])
def test_a_number_of_data_that_may_be_no_size(cut):
    with pytest.raises(DimError, match=r"negative, and is used as a size(.|\n)*_check\(n >= 0\)"):
        import_module(Function(cut), (torch.randn(3), torch.tensor(2)))


MASKS = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1], [0] * 5]).bool()


def test_attention_between_the_rows_of_a_mask():
    def attend(x, mask):
        q, k, v = (x[mask] * i for i in (1, 2, 3))
        rest = x[~mask][None, None]
        return (
            F.scaled_dot_product_attention(q, k, v),
            F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True),
            F.scaled_dot_product_attention(x[mask][None, None], rest, rest),
            x[mask] + q * 2,
        )

    compare(attend, *((torch.randn(5, 8), mask) for mask in MASKS))


def median(x, mask):
    return x[mask].median(), x.median()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8])
def test_a_median_of_any_number_of_elements(dtype):
    x = torch.tensor([3, 1, 200, 7, 2]).to(dtype)
    compare(median, *((x, mask) for mask in MASKS))
    compare(lambda x: (x.median(),), (x[:0],))


def test_a_median_with_nan_and_along_an_empty_axis():
    x = torch.tensor([3.0, float("nan"), 1.0, 7.0, 2.0])
    compare(median, (x, MASKS[0]), (x, ~MASKS[0]))
    compare(lambda x: tuple(x.median(1)), (torch.zeros(0, 3),))
    with pytest.raises(ShapeError, match=r"an axis without elements(.|\n)*f32\[2, 0\], the axis 1"):
        import_module(Function(lambda x: x.median(1).values), (torch.zeros(2, 0),))


def test_why_a_recurrent_layer_in_a_branch_is_refused():
    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 4)

        def forward(self, flag, x):
            return torch.cond(flag, lambda x: self.lstm(x)[0], lambda x: x * 2, (x,))

    with pytest.raises(UnsupportedModel, match=r"cannot trace(.|\n)*outside the scope(.|\n)*LSTM"):
        import_module(Branch(), (torch.tensor(True), torch.randn(3, 1, 4)))
