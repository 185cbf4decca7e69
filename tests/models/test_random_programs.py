"""Random chains of operations against eager: fusions and views in orders nobody thought of."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright

SHAPES = [(2, 3, 4), (3, 4), (2, 4, 6), (5,), (4, 6), (2, 1, 4), (1, 5), (3, 5), (2, 3, 8), (4, 1)]
SEEDS = range(2000, 10_000, 1000)  # of the slow run
PROGRAMS = 8  # in one module, as starting the C++ compiler costs more than a program

UNARY = (
    *(torch.tanh, torch.sigmoid, F.relu, F.gelu, F.silu, torch.abs, torch.neg, torch.cos),
    *(lambda x: x.clamp(-1, 1), lambda x: x * x, lambda x: torch.exp(-x.abs())),
    *(lambda x: (x.abs() + 1).sqrt(), lambda x: x * torch.sigmoid(x)),
)
# a last bit decides what these give, so they are given exact values only: the inputs
JUMPS = ("where", "fill", "argmax", "cast")
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum)
REDUCE = (torch.sum, torch.mean, torch.amax)


def steps(rng: random.Random, x: torch.Tensor, other: torch.Tensor):
    """Names of what can be done with `x` -> a function that does it."""
    rank, axis = x.dim(), rng.randrange(max(x.dim(), 1))
    size = x.shape[axis] if rank else 1
    start = rng.randrange(size)
    order = rng.sample(range(rank), rank)
    unary, binary, reduce = rng.choice(UNARY), rng.choice(BINARY), rng.choice(REDUCE)
    front = rng.choice([0, axis])
    return {
        "unary": lambda x, y: unary(x),
        "binary": lambda x, y: binary(x, y),
        "reduce": lambda x, y: reduce(x, dim=axis),
        "center": lambda x, y: x - reduce(x, dim=axis, keepdim=True),
        "norm": lambda x, y: F.layer_norm(x, x.shape[axis:]),
        "softmax": lambda x, y: x.softmax(axis),
        "permute": lambda x, y: x.permute(order),
        "flatten": lambda x, y: x.transpose(0, axis).flatten(0, min(1, rank - 1)),
        "narrow": lambda x, y: x.narrow(axis, start, (size - start + 1) // 2),
        "select": lambda x, y: x.select(axis, start),
        "stride": lambda x, y: x[::2],
        "cat": lambda x, y: torch.cat([x, x[:1] * 2, x], 0),
        "stack": lambda x, y: torch.stack([x, x + 1], front),
        "where": lambda x, y: torch.where(x > 0.1, x, y),
        "fill": lambda x, y: x.masked_fill(x < 0, -3.0),
        "cumsum": lambda x, y: x.cumsum(axis),
        "cummax": lambda x, y: x.cummax(axis).values,
        "sort": lambda x, y: x.sort(axis, descending=start % 2 == 1).values,
        "topk": lambda x, y: x.topk((size + 1) // 2, axis).values,
        "scatter": lambda x, y: x.scatter_add(axis, x.argsort(axis) // 2, x * 0.5),
        "pad": lambda x, y: F.pad(x, (1, start % 2)),
        "gram": lambda x, y: x @ x.transpose(-1, -2),
        "argmax": lambda x, y: x.argmax(axis).float(),
        "flip": lambda x, y: x.flip(axis),
        "expand": lambda x, y: x.unsqueeze(axis).expand(*x.shape[:axis], 2, *x.shape[axis:]),
        "write": lambda x, y: overwritten(x),
        "cast": lambda x, y: x.to(torch.int32).float() + x,
    }


def overwritten(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy[:1] = 1.5
    return copy


class Program(nn.Module):
    """A chain made by trying: what eager refuses is not in it."""

    def __init__(self, seed: int):
        super().__init__()
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = [torch.randn(rng.choice(SHAPES), generator=generator) for _ in range(2)]
        self.chain: list = []  # (function, index of x, index of y)
        pool = list(self.inputs)
        while len(self.chain) < 8:
            i, j = (rng.randrange(max(0, len(pool) - 4), len(pool)) for _ in range(2))
            name, function = rng.choice(list(steps(rng, pool[i], pool[j]).items()))
            if name in JUMPS and i >= len(self.inputs):
                continue
            try:
                value = function(pool[i], pool[j])
            except (RuntimeError, IndexError):
                continue
            if 0 < value.numel() <= 4000 and value.dim() <= 5:
                self.chain.append((function, i, j))
                pool.append(value)

    def forward(self, *inputs):
        pool = list(inputs)
        for function, i, j in self.chain:
            pool.append(function(pool[i], pool[j]))
        return pool[-4:]


class Programs(nn.Module):
    def __init__(self, seed: int):
        super().__init__()
        self.parts = nn.ModuleList(Program(seed + i) for i in range(PROGRAMS))

    def forward(self, *inputs):
        return [part(*inputs[2 * i : 2 * i + 2]) for i, part in enumerate(self.parts)]


@pytest.mark.parametrize(
    "seed", [0, 1000, *(pytest.param(s, marks=pytest.mark.slow) for s in SEEDS)]
)
def test_chains_give_what_eager_gives(seed, device, slack):
    module = Programs(seed).eval()
    inputs = [x for part in module.parts for x in part.inputs]
    with torch.no_grad():
        expected = module(*inputs)
    got = tilewright.compile(module, target=device)(*inputs)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            # sums of many products and floors at a boundary: relative to the largest element
            scale = max(1.0, b.abs().max().item())
            bound, said = 2e-5 * scale * slack, f"seed {seed + number}"
            torch.testing.assert_close(a.cpu(), b, rtol=0, atol=bound, msg=said)
