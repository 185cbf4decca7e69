"""Norms that are part of products: as near to float64 as norms by themselves, whatever the mean.

Where a mean is subtracted x is normalized before it is multiplied, so the error is that of the
norm: eps * (1 + |mean| / std) in float32.
"""

import pytest
import torch
from torch import nn

import tilewright

EPS = torch.finfo(torch.float32).eps


class Norms(nn.Module):
    """Four norms, each before a product of its own: two of torch's, two written out."""

    def __init__(self, width=96):
        super().__init__()
        self.layer, self.rms = nn.LayerNorm(width), nn.RMSNorm(width, eps=1e-6)
        self.products = nn.ModuleList(nn.Linear(width, 40, bias=i % 2 == 0) for i in range(4))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)

    def forward(self, x):
        centered = x - x.mean(-1, keepdim=True)
        spread = centered.abs().mean(-1, keepdim=True)
        largest = x.abs().amax(-1, keepdim=True)
        normed = self.layer(x), self.rms(x), centered / spread, x / largest
        return [product(n) for product, n in zip(self.products, normed)]


@pytest.fixture(scope="module")
def subject(device):
    torch.manual_seed(0)
    module = Norms()
    rows = torch.export.Dim("rows", min=1, max=200)
    dynamic = {"x": {0: rows}}
    compiled = tilewright.compile(
        module, (torch.randn(5, 96),), dynamic_shapes=dynamic, target=device
    )
    return module, compiled


def test_each_norm_is_part_of_its_product(subject, device):
    _, compiled = subject
    templates = {k.template for k in compiled.program.kernels.values()}
    # On a GPU what subtracts a mean is normalized before its product (decision 0017).
    assert templates == ({"contract"} if device == "cpu" else {"contract", "reduce"})


@pytest.mark.parametrize("rows", [1, 7, 64, 130])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.0, 1e-3), (50.0, 1.0), (3000.0, 0.5)])
def test_the_error_is_that_of_a_norm_by_itself(subject, rows, mean, std, slack):
    module, compiled = subject
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(rows)) * std + mean
    with torch.no_grad():
        want = module.double()(x.double())
        module.float()
    for number, (got, exact) in enumerate(zip(compiled(x), want, strict=True)):
        off = abs(mean) / std if number in (0, 2) else 0.0  # what the subtracted mean loses
        bound = 8 * EPS * (1 + off) * exact.abs().max() * slack
        assert (got.cpu().double() - exact).abs().max() <= bound, (number, mean, std)
