"""`compile` on a network of images against eager: every layer in the company of others."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright


def normalized(conv: nn.Module) -> nn.Sequential:
    """A convolution and a normalization whose statistics are not those that it starts with."""
    channels = conv.out_channels
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0, 0.3)
    return nn.Sequential(conv, norm)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = normalized(nn.Conv2d(3, 16, 3, 2, 1, bias=False))
        self.depthwise = normalized(nn.Conv2d(16, 16, 5, 1, 2, groups=16))
        self.wider = normalized(nn.Conv2d(16, 40, 1))
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(40, 8, 1), nn.ReLU(), nn.Conv2d(8, 40, 1)
        )
        self.grouped = normalized(nn.Conv2d(40, 40, 3, 1, 1, groups=10))
        self.up = nn.ConvTranspose2d(40, 12, 4, 2, 1)
        self.dilated = nn.Conv2d(12, 7, 3, padding=2, dilation=2)
        self.head = nn.Linear(7 + 40, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu6(self.stem(x)), 3, 2, 1)
        x = self.wider(F.hardswish(self.depthwise(x)))
        x = x * self.gate(x).sigmoid()
        x = F.channel_shuffle(F.relu(self.grouped(x) + x), 4)
        y = F.interpolate(self.up(x), scale_factor=2, mode="bilinear")
        y = F.avg_pool2d(self.dilated(y), 2).flatten(2).mean(-1)
        return self.head(torch.cat([y, x.amax((2, 3))], 1)), x


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_a_network_of_any_batch(net):
    x = torch.randn(2, 3, 33, 38)
    batch = torch.export.Dim("batch", min=1, max=8)
    compiled = tilewright.compile(net, (x,), dynamic_shapes=({0: batch},))
    for count in (1, 2, 5):
        x = torch.randn(count, 3, 33, 38)
        with torch.no_grad():
            expected = net(x)
        for ours, theirs in zip(compiled(x), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
