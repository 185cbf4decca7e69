"""`tilewright.compile` on ordinary modules: one program for a range of sizes."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import tilewright
from tilewright.ir.errors import UnsupportedModel


class Encoder(nn.Module):
    """A small transformer encoder with an embedding and a classifier over the mean."""

    def __init__(self, width=32, heads=4, vocab=50):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.heads = heads

    def forward(self, tokens):
        x = self.embed(tokens)
        b, s, e = x.shape
        y = self.norm1(x)

        def split(p):
            return p(y).view(b, s, self.heads, e // self.heads).transpose(1, 2)

        a = nn.functional.scaled_dot_product_attention(
            split(self.query), split(self.key), split(self.value)
        )
        x = x + self.out(a.transpose(1, 2).reshape(b, s, e))
        x = x + self.mlp(self.norm2(x))
        return {"tokens": x, "mean": x.mean(1)}


BATCH, SEQUENCE = Dim("batch", min=1, max=8), Dim("seq", min=1, max=512)


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module")
def compiled(encoder):
    example = (torch.randint(0, 50, (2, 7)),)
    return tilewright.compile(
        encoder, example, dynamic_shapes={"tokens": {0: BATCH, 1: SEQUENCE}}, target="cpu"
    )


@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("length", [1, 3, 64, 512])
def test_one_program_serves_all_sizes(encoder, compiled, batch, length):
    tokens = torch.randint(0, 50, (batch, length))
    got = compiled(tokens)
    with torch.no_grad():
        expected = encoder(tokens)
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)
    assert len(compiled.variants) == 1


def test_a_size_out_of_range_names_the_dim_and_its_range(compiled):
    with pytest.raises(tilewright.DimError, match=r"batch.* is 9, its range is \[1, 8\]"):
        compiled(torch.zeros((9, 4), dtype=torch.int64))
    with pytest.raises(tilewright.DimError, match=r"seq.* is 513, its range is \[1, 512\]"):
        compiled(torch.zeros((1, 513), dtype=torch.int64))


def test_wrong_inputs_are_named(compiled):
    with pytest.raises(tilewright.DimError, match="rank"):
        compiled(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(tilewright.ShapeError, match="tokens is f32, must be i64"):
        compiled(torch.zeros((2, 4)))
    with pytest.raises(tilewright.ShapeError):
        compiled(torch.zeros((2, 4), dtype=torch.int64), torch.zeros(1))


def test_lazy_export_turns_what_changes_dynamic(encoder):
    compiled = tilewright.compile(encoder, target="cpu")
    sizes = [(2, 5), (2, 9), (3, 9), (4, 1), (1, 30)]
    for batch, length in sizes:
        tokens = torch.randint(0, 50, (batch, length))
        with torch.no_grad():
            expected = encoder(tokens)["mean"]
        torch.testing.assert_close(compiled(tokens)["mean"], expected, rtol=1e-5, atol=1e-5)
    # static, then the length dynamic, then both: no more
    assert len(compiled.variants) == 3


def test_numpy_in_numpy_out(encoder, compiled):
    tokens = np.random.default_rng(0).integers(0, 50, (2, 6))
    got = compiled(tokens)["mean"]
    assert isinstance(got, np.ndarray)
    with torch.no_grad():
        expected = encoder(torch.from_numpy(tokens))["mean"].numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_buffer_that_is_written_keeps_its_value_between_calls():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total.add_(x.sum(0))
            return self.total * 2, x, x

    module = Counter()
    compiled = tilewright.compile(module, target="cpu")
    x = torch.ones(3, 4)
    first, same, again = compiled(x)
    torch.testing.assert_close(first, torch.full((4,), 6.0))
    torch.testing.assert_close(compiled(x)[0], torch.full((4,), 12.0))
    torch.testing.assert_close(same, x)
    torch.testing.assert_close(again, x)
    torch.testing.assert_close(module.total, torch.zeros(4))  # the module itself is untouched


def test_what_is_written_may_be_a_parameter_and_shares_no_memory():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x, y):
            self.scale.add_(1)
            x.mul_(2)
            return x * self.scale + y

    compiled = tilewright.compile(Writes(), target="cpu")
    x = torch.ones(8)
    for count in (2, 3):
        got = compiled(x[:3], x[3:6])
        torch.testing.assert_close(got, torch.full((3,), 2.0 ** (count - 1) * count + 1))
    for y in (x[:3], x[2:5], x.numpy()[1:4]):
        with pytest.raises(UnsupportedModel, match=r"shares its memory(.|\n)*x and y overlap"):
            compiled(x[:3], y)
    assert x.tolist() == [4, 4, 4, 1, 1, 1, 1, 1]

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.ones(2, 3))
            self.register_buffer("row", self.total[0])

        def forward(self, x):
            self.total.add_(x)
            return self.row * 1

    with pytest.raises(UnsupportedModel, match="share their memory"):
        tilewright.compile(Twice(), (torch.ones(3),), target="cpu")


def test_buffers_that_change_places():
    class Swap(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.zeros(3))
            self.register_buffer("b", torch.ones(3))

        def forward(self, x):
            a = self.a.clone()
            self.a.copy_(self.b)
            self.b.copy_(a)
            return x + self.a

    compiled = tilewright.compile(Swap(), target="cpu")
    got = [compiled(torch.zeros(3))[0].item() for _ in range(3)]
    assert got == [1.0, 0.0, 1.0]


def test_control_flow_on_values_is_refused():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(tilewright.UnsupportedModel, match="control flow depends on the values"):
        tilewright.compile(Branch(), (torch.ones(3),), target="cpu")


def test_unsupported_ops_are_listed_together():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x) + torch.linalg.det(x)

    with pytest.raises(tilewright.UnsupportedOp) as error:
        tilewright.compile(Odd(), (torch.ones(3, 3),), target="cpu", strict=True)
    assert "airy_ai" in str(error.value)
    assert "det" in str(error.value)


def test_an_unknown_option_is_named(encoder):
    with pytest.raises(tilewright.OptionError, match="no option named 'fast'"):
        tilewright.compile(encoder, options={"fast": True}, target="cpu")


def test_narrow_weights(encoder):
    compiled = tilewright.compile(encoder, options={"weights_dtype": "bf16"}, target="cpu")
    tokens = torch.randint(0, 50, (2, 6))
    with torch.no_grad():
        expected = encoder(tokens)["mean"]
    torch.testing.assert_close(compiled(tokens)["mean"], expected, rtol=2e-2, atol=2e-2)
