"""Importing whole modules: structure of arguments, ties, state, aliasing, sizes, refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import ShapeError, UnsupportedModel, UnsupportedOp
from tilewright.ir.evaluate import evaluate
from tilewright.ir.verify import verify

Dim = torch.export.Dim


def run(imported, *args, states=None, **kwargs):
    inputs = {k: v.numpy() for k, v in imported.signature.flatten(args, kwargs).items()}
    outputs, new = evaluate(imported.graph, inputs, imported.weights, states or imported.states)
    return imported.signature.restore(outputs), new


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12, atol=1e-12)


class Encoder(nn.Module):
    """BERT-like: embeddings, post-norm layers of nn.MultiheadAttention, a tied head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.places = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)
        self.head.weight = self.words.weight

    def forward(self, ids, mask=None):
        places = torch.arange(ids.shape[1])
        hidden = self.words(ids) + self.places(places)
        hidden = self.layers(hidden, src_key_padding_mask=mask)
        return self.head(hidden), hidden.mean(1)


def test_encoder_with_a_padding_mask_at_many_sizes():
    torch.manual_seed(0)
    module = Encoder().double().eval()
    ids, mask = torch.randint(0, 20, (2, 5)), torch.zeros(2, 5, dtype=torch.bool)
    batch, tokens = Dim("b"), Dim("s", max=32)
    shapes = {"ids": {0: batch, 1: tokens}, "mask": {0: batch, 1: tokens}}
    imported = import_module(module, (ids,), {"mask": mask}, dynamic_shapes=shapes)
    verify(imported.graph)
    symbols = imported.graph.symbols
    assert (symbols["b"].lo, symbols["b"].hi) == (1, None)
    assert (symbols["s"].lo, symbols["s"].hi) == (1, 32)
    assert [w for w in imported.weights if "head" in w] == ["head.bias"], "tied: one weight"
    module.eval()
    for b, s in ((1, 1), (3, 1), (1, 9), (4, 32)):
        ids = torch.randint(0, 20, (b, s))
        mask = torch.zeros(b, s, dtype=torch.bool)
        mask[0, s // 2 + 1 :] = True
        (logits, mean), _ = run(imported, ids, mask=mask)
        expected = module(ids, mask=mask)
        # the fused encoder of torch zeroes padded rows, so compare the rows that are read
        close(logits[~mask.numpy()], expected[0][~mask])
        if not mask.any():
            close(mean, expected[1])


class Vision(nn.Module):
    """A vision transformer whose patches are cut by reshapes, without convolution."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, 32)
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        self.pos = nn.Parameter(torch.randn(1, 17, 32))
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, image):
        b = image.shape[0]
        patches = image.reshape(b, 3, 4, 4, 4, 4)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = torch.cat([self.cls.expand(b, -1, -1), self.embed(patches)], 1) + self.pos
        y = self.norm(x)
        x = x + self.attention(y, y, y)[0]
        x = x + self.mlp(self.norm(x))
        return self.head(x[:, 0])


def test_vision_transformer():
    torch.manual_seed(0)
    module = Vision().double().eval()
    image = torch.randn(3, 3, 16, 16).double()
    imported = import_module(module, (image,), dynamic_shapes=({0: Dim("b")},))
    verify(imported.graph)
    for b in (1, 2, 5):
        image = torch.randn(b, 3, 16, 16).double()
        out, _ = run(imported, image)
        close(out, module(image))


class Containers(nn.Module):
    def forward(self, pair, *, options, scale=2, flag=None):
        a, b = pair
        total = (a + b) * scale if flag is None else a
        return {"sum": total, "same": [a, total, total], "none": None, "n": a.shape[0], "k": 7}


def test_containers_repeats_constants_and_inputs_as_outputs():
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    shapes = {"pair": ({0: Dim("n")}, {0: Dim("n")}), "options": {"z": None}}
    imported = import_module(
        Containers(), ((x, y),), {"options": {"z": y[0]}}, dynamic_shapes=shapes
    )
    verify(imported.graph)
    out, _ = run(imported, (x[:1], y[:1]), options={"z": y[0]})
    assert list(out) == ["sum", "same", "none", "n", "k"]
    assert out["none"] is None
    assert (out["n"], out["k"]) == (1, 7)
    np.testing.assert_allclose(out["sum"], ((x + y) * 2)[:1], rtol=1e-6)
    assert out["same"][1] is out["sum"]
    np.testing.assert_array_equal(out["same"][0], x[:1])


def test_arguments_of_another_structure_are_refused():
    x = torch.randn(4, 3)
    imported = import_module(Containers(), ((x, x),), {"options": {"z": x}})
    with pytest.raises(ShapeError, match="not built like those it was compiled for"):
        imported.signature.flatten(((x, x, x),), {"options": {"z": x}})
    with pytest.raises(ShapeError, match="not built like"):
        imported.signature.flatten(((x, x),), {"options": {"q": x}})


def test_a_changed_constant_is_refused():
    x = torch.randn(4, 3)
    imported = import_module(Containers(), ((x, x),), {"options": {"z": x}, "scale": 3})
    given = {"options": {"z": x}, "scale": 4}
    with pytest.raises(ShapeError, match="it was 3, now it is 4"):
        imported.signature.flatten(((x, x),), given)


def test_keywords_may_come_in_any_order():
    x = torch.randn(4, 3)
    imported = import_module(Containers(), ((x, x),), {"options": {"z": x}, "scale": 3})
    inputs = imported.signature.flatten(((x, x),), {"scale": 3, "options": {"z": x}})
    assert [value is x for value in inputs.values()] == [True] * 3


class Counter(nn.Module):
    """Mutated buffers become states: the new values are results of the graph."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3).double())
        self.register_buffer("last", torch.zeros(2, 3).double())
        self.register_buffer("table", torch.arange(3).double())

    def forward(self, x):
        self.seen.add_(x.sum(0))
        self.last[1] = x[0]
        return x * self.seen + self.table


def test_mutated_buffers_are_states():
    module = Counter()
    x = torch.randn(4, 3).double()
    imported = import_module(module, (x,), dynamic_shapes=({0: Dim("n")},))
    verify(imported.graph)
    assert sorted(imported.states) == ["last", "seen"]
    assert list(imported.weights) == ["table"]
    assert module.seen.abs().sum() == 0, "importing does not run the module"
    states = dict(imported.states.items())
    for n in (1, 4):
        x = torch.randn(n, 3).double()
        out, states = run(imported, x, states=states)
        close(out, module(x))
        close(states["seen"], module.seen)
        close(states["last"], module.last)


class Aliases(nn.Module):
    """A view written through is seen in its base, and in the base's other views."""

    def forward(self, x):
        base = x * 1
        other = base.view(-1, 2)
        row = base[:, 0]
        row.add_(100)
        base[:, 1:3] *= 2
        other[0, 1] = -1
        base.relu_()
        return base, other, row, base.t()


def test_writes_through_views_reach_every_alias():
    module = Aliases()
    x = torch.randn(5, 4).double()
    imported = import_module(module, (x,), dynamic_shapes=({0: Dim("n")},))
    verify(imported.graph)
    for n in (1, 5):
        x = torch.randn(n, 4).double()
        out, _ = run(imported, x)
        for ours, theirs in zip(out, module(x), strict=True):
            close(ours, theirs)


class WritesInput(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


def test_what_is_written_into_an_argument_is_an_output_of_its_own():
    x = torch.randn(3).double()
    imported = import_module(WritesInput(), (x,))
    assert imported.signature.written == (("x", 0),)
    out, _ = run(imported, x.clone())
    close(out, (x + 1) * 2)


# ---- sizes -----------------------------------------------------------------------------------


class Branches(nn.Module):
    def __init__(self, condition):
        super().__init__()
        self.condition = condition

    def forward(self, x):
        return x * 2 if self.condition(x.shape[0]) else x + 1


@pytest.mark.parametrize(
    ("condition", "lo", "hi"),
    [
        (lambda n: n == 1, 2, None),
        (lambda n: n > 1, 2, None),
        (lambda n: n > 3, 4, None),
        (lambda n: n < 100, 1, 99),
        (lambda n: 2 * n + 1 >= 8, 4, None),
        (lambda n: n >= 1, 1, None),
    ],
)
def test_a_branch_on_a_size_narrows_the_range(condition, lo, hi):
    """The traced side holds only where the branch goes the same way; that becomes the range."""
    module = Branches(condition)
    x = torch.randn(6, 2)
    imported = import_module(module, (x,), dynamic_shapes=({0: Dim("n")},))
    n = imported.graph.symbols["n"]
    assert (n.lo, n.hi) == (lo, hi)
    assert bool(imported.notes) == ((lo, hi) != (1, None))
    for size in {lo, 6, hi or 12}:
        x = torch.randn(size, 2)
        out, _ = run(imported, x)
        np.testing.assert_allclose(out, module(x), rtol=1e-6)


# ---- refusals ----------------------------------------------------------------------------------


class Unsupported(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, 3, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Conv1d(3, 3, 1), nn.Conv1d(3, 3, 1)])

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return torch.special.airy_ai(x) + torch.linalg.det(x @ x.mT)[:, None, None]


def test_unsupported_operations_come_in_one_table():
    with pytest.raises(UnsupportedOp) as caught:
        import_module(Unsupported(), (torch.randn(2, 3, 8),))
    text = str(caught.value)
    assert "2 unsupported operations in 2 places" in text
    assert "aten.special_airy_ai.default" in text
    assert "1 x  first at test_torch_export.py:" in text
    assert "det" in text


def test_control_flow_on_values_is_refused_with_the_line():
    class OnValues(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(UnsupportedModel) as caught:
        import_module(OnValues(), (torch.randn(3),))
    text = str(caught.value)
    assert "control flow depends on the values of a tensor" in text
    assert "if x.sum() > 0" in text
    assert "torch.where" in text


def test_an_error_of_the_modules_own_code_passes_through():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("the module says no")

    with pytest.raises(ValueError, match="the module says no"):
        import_module(Broken(), (torch.randn(3),))


def test_every_part_is_traced_in_its_own_mode_and_left_in_it():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    module[1].eval()
    before = [part.training for part in module.modules()]
    import_module(module, (torch.randn(2, 3),))
    assert [part.training for part in module.modules()] == before


def test_attributes_that_forward_sets_do_not_stay():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.full((1,), 2.0))
            self.table = {"old": 1}
            self.history = []

        def forward(self, x):
            self.last = x * self.scale
            self.scale = self.scale.abs()
            self.table["new"] = x
            self.history.append(x)
            return self.last + self.scale

    module = Caches()
    scale = module.scale
    imported = import_module(module, (torch.ones(3),))
    assert not hasattr(module, "last")
    assert module.scale is scale
    assert module.table == {"old": 1}
    assert module.history == []
    np.testing.assert_array_equal(run(imported, torch.ones(3))[0], [4, 4, 4])


def test_locations_name_the_users_modules():
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.LayerNorm(3)))
    graph = import_module(module, (torch.randn(2, 3),)).graph
    assert [node.loc for node in graph.nodes][-1] == "1.0"
    assert graph.nodes[0].loc == "0"
