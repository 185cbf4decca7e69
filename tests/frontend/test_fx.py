"""fx graph modules go through the same importer."""

import numpy as np
import torch
from torch import fx, nn

from tilewright.frontend.torch_export import import_module
from tilewright.ir.evaluate import evaluate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x, scale=None):
        hidden = torch.relu(self.first(x))
        return x + self.second(hidden).softmax(-1)


def run(imported, x):
    inputs = {k: v.numpy() for k, v in imported.signature.flatten((x,), {}).items()}
    outputs, _ = evaluate(imported.graph, inputs, imported.weights)
    return imported.signature.restore(outputs)


def test_a_traced_module():
    model = Model().double().eval()
    traced = fx.symbolic_trace(model, concrete_args={"scale": None})
    x = torch.randn(3, 4).double()
    shapes = ({0: torch.export.Dim("n")}, None)
    imported = import_module(traced, (x, None), dynamic_shapes=shapes)
    assert list(imported.graph.symbols) == ["n"]
    assert sorted(imported.weights) == sorted(dict(model.named_parameters()))
    for n in (1, 6):
        x = torch.randn(n, 4).double()
        flat = imported.signature.flatten((x, None), {})
        outputs, _ = evaluate(
            imported.graph, {k: v.numpy() for k, v in flat.items()}, imported.weights
        )
        (out,) = outputs
        np.testing.assert_allclose(out, model(x).detach().numpy(), rtol=1e-12)


def test_an_exported_programs_module():
    model = Model().double().eval()
    x = torch.randn(3, 4).double()
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    imported = import_module(
        program.module(check_guards=False), (x,), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    np.testing.assert_allclose(run(imported, x), model(x).detach().numpy(), rtol=1e-12)


def test_sections_without_gradients_are_inlined():
    class Sections(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = x.sin()
            with torch.enable_grad():
                z = y * 2
            with torch.autocast("cpu", enabled=False):
                z = z @ z.mT
            return z + y.sum()

    module, x = Sections(), torch.randn(3, 3).double()
    imported = import_module(module, (x,))
    np.testing.assert_allclose(run(imported, x), module(x), rtol=1e-12)
