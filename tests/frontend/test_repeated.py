"""Layers that are alike are traced once, and come out as if each had been traced."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tilewright.frontend import trace
from tilewright.frontend.torch_export import import_module
from tilewright.ir.text import print_graph

from .test_torch_export import run

LAYERS = 4
traced: list["Layer"] = []  # the layers whose forward ran


class Layer(nn.Module):
    """A normalization and two products: as many parts as make a layer."""

    def __init__(self, number):
        super().__init__()
        self.number, self.scale = number, 2.0
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        traced.append(self)
        return x + self.down(self.up(self.norm(x)).relu()) * self.scale


class Model(nn.Module):
    """Layers in a list, one after another, and some of them twice."""

    def __init__(self, layer=Layer, change=lambda layers: None):
        super().__init__()
        self.layers = nn.ModuleList(layer(number) for number in range(LAYERS))
        change(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.layers[1](x)


def texts(model, monkeypatch):
    """The graph, with layers traced once where they can be; -> and how many layers were traced."""
    x = torch.randn(5, 6)
    shapes = ({0: torch.export.Dim("n")},)
    with monkeypatch.context() as patch:
        patch.setattr(trace, "traced_once", lambda root: nullcontext())
        full = import_module(model, (x,), dynamic_shapes=shapes)
    traced.clear()
    imported = import_module(model, (x,), dynamic_shapes=shapes)
    count = len(traced)
    assert print_graph(imported.graph, locs=True) == print_graph(full.graph, locs=True)
    for n in (1, 8):
        x = torch.randn(n, 6)
        np.testing.assert_allclose(run(imported, x)[0], model(x).detach(), rtol=1e-4, atol=1e-5)
    return count


def test_layers_that_are_alike_are_traced_once(monkeypatch):
    assert texts(Model(), monkeypatch) == 1


class Paired(Layer):
    """A layer of two arguments, whose sizes it finds to be equal."""

    def forward(self, x, y):
        return super().forward(x + y)


class Pairs(Model):
    """Layers that are all given one more argument."""

    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x, y=y)
        return x


def test_sizes_that_the_first_layer_finds_equal():
    model, args = Pairs(Paired), (torch.randn(5, 6), torch.randn(5, 6))
    traced.clear()
    imported = import_module(model, args, dynamic_shapes=({0: torch.export.Dim.AUTO},) * 2)
    assert len(traced) == 1
    x, y = torch.randn(3, 6), torch.randn(3, 6)
    np.testing.assert_allclose(run(imported, x, y)[0], model(x, y).detach(), rtol=1e-4, atol=1e-5)


def _other_scale(layers):
    layers[2].scale = 3.0


def _other_size(layers):
    layers[2].up, layers[2].down = nn.Linear(6, 9), nn.Linear(9, 6)


def _other_parts(layers):
    layers[2].norm = nn.RMSNorm(6)


def _activations(layers):
    for layer, of in zip(layers, ("none", "tanh", "none", "tanh")):
        layer.up = nn.Sequential(layer.up, Activation(partial(F.gelu, approximate=of)))


def _one_matrix(layers):
    layers[2].up.weight = layers[0].up.weight


def _one_part(layers):
    for layer in layers:
        layer.down = layers[0].down


class Activation(nn.Module):
    """A function of torch as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (_other_scale, 2),
        (_other_size, 2),
        (_other_parts, 2),
        (_activations, 2),
        (_one_matrix, 2),  # two with that matrix, two with others
        (_one_part, 1),
    ],
)
def test_layers_that_differ_are_traced_each(change, count, monkeypatch):
    assert texts(Model(change=change), monkeypatch) == count


class Numbered(Layer):
    """Layers that know which they are."""

    def forward(self, x):
        return super().forward(x) * (1 + self.number % 2)


class Looked(Layer):
    """Attributes that are read in another way."""

    def forward(self, x):
        return super().forward(x) * vars(self)["number"]


class Counting(Layer):
    """What was called before is counted, in an object of the layer."""

    calls: list

    def __init__(self, number):
        super().__init__(number)
        self.calls = CALLS

    def forward(self, x):
        self.calls.append(self.number)
        return super().forward(x) * len(self.calls)


class Leaving(Layer):
    """What a layer leaves is read by the next."""

    def __init__(self, number):
        super().__init__(number)
        self.left = LEFT

    def forward(self, x):
        before = self.left.get("x", x)
        self.left["x"] = x
        return super().forward(x) + before


class Inside(Layer):
    """Writes into memory of its own."""

    def forward(self, x):
        y = torch.zeros_like(x)
        y[:, :3] = x[:, 3:]
        return super().forward(y.mul_(3))


class Entering(Layer):
    """Writes into what it is given."""

    def forward(self, x):
        x.add_(1)
        return super().forward(x)


class Kept(Layer):
    """Writes into a buffer."""

    def __init__(self, number):
        super().__init__(number)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x) + self.seen


class Tables(Layer):
    """Constants that are made in each layer."""

    def forward(self, x):
        return super().forward(x) + torch.tensor([1.0, 2, 3, 4, 5, 6])


CALLS: list[int] = []
LEFT: dict[str, torch.Tensor] = {}


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Numbered, LAYERS),  # of which the second is called twice
        (Looked, LAYERS),
        (Inside, 1),
        (Entering, 1 + LAYERS + 1),  # once more, all of them
        (Kept, 1 + LAYERS + 1),
    ],
)
def test_what_layers_do_besides(kind, count, monkeypatch):
    class Copied(Model):
        def forward(self, x):
            return super().forward(x.clone())

    model = Copied(kind)
    x = torch.randn(3, 6)
    imported = import_module(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    right = model(x.clone()) if kind is not Kept else None
    traced.clear()
    imported = import_module(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert len(traced) == count
    if right is None:
        assert len(imported.graph.states) == LAYERS
    else:
        np.testing.assert_allclose(run(imported, x)[0], right.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Counting, Leaving])
def test_what_is_left_behind_is_no_part_of_a_layer(kind):
    CALLS.clear()
    LEFT.clear()
    model, x = Model(kind), torch.randn(3, 6)
    traced.clear()
    import_module(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert len(traced) == LAYERS + 1
