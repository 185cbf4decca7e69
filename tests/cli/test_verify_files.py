"""`tilewright verify` on what lies in files: GGUF, exported programs, the demo model."""

import json

import pytest
import torch

from tilewright.api import demo_model
from tilewright.cli.app import run
from tilewright.frontend import checkpoint

from ..frontend.gguf_models import random_model, write_model

OPTIONS = ("--target", "cpu", "--json", "-q")


def test_a_gguf_file(tmp_path, tilewright):
    """Beside transformers with the weights of the file; what rounding does is nobody's fault."""
    path = write_model(tmp_path / "m.gguf", random_model("qwen3", head_dim=8), "qwen3")
    options = ("--dtype", "float32", "--tolerance", "1e-12", "--bisect")
    done = tilewright("verify", path, *options, *OPTIONS)
    assert done.returncode == 1
    assert "of 6 results differ from transformers, float32" in done.stderr
    verdict = json.loads(done.stdout)
    assert [len(case["results"]) for case in verdict["cases"]] == [1, 1, 1, 3]
    assert all(r["error"] < 1e-5 for case in verdict["cases"] for r in case["results"])
    assert verdict["suspect"] is None


def test_weights_of_a_gguf_file_are_those_of_the_module(tmp_path):
    model = random_model("gemma2", head_dim=8)
    eager = checkpoint.load_eager(write_model(tmp_path / "m.gguf", model, "gemma2"))
    wanted = dict(model.named_parameters())
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(parameter, wanted[name])


class Net(torch.nn.Module):
    """A state that grows, integers, and a choice by data."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, k):
        self.calls += 1
        return {"y": torch.tanh(self.linear(x)) + self.calls, "k": torch.where(k > 2, k, -k)}


def test_an_exported_program(tmp_path, tilewright):
    rows = torch.export.Dim("rows", min=2, max=9)
    shapes = {"x": {0: rows}, "k": {0: rows}}
    arguments = torch.randn(3, 4), torch.arange(3)
    exported = torch.export.export(Net().eval(), arguments, dynamic_shapes=shapes)
    path = tmp_path / "net.pt2"
    torch.export.save(exported, path)
    done = tilewright("verify", path, "--trust", "--bisect", *OPTIONS)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["reference"] == "PyTorch, eager"
    assert len(verdict["cases"]) == 3
    assert [r["bound"] for r in verdict["cases"][0]["results"]] == [1e-4, 0]
    done = tilewright("verify", path, *OPTIONS)
    assert done.returncode == 1
    assert "--trust" in done.stderr


def test_the_demo_is_verified_as_its_file(tmp_path, monkeypatch, capsys):
    path = write_model(tmp_path / "demo.gguf", random_model("qwen3", head_dim=8), "qwen3")
    monkeypatch.setattr(demo_model, "demo_path", lambda: path)
    with pytest.raises(SystemExit) as end:
        run(["verify", "demo", "--dtype", "float32", *OPTIONS])
    verdict = json.loads(capsys.readouterr().out)
    assert end.value.code == 0
    assert verdict["right"]
    assert verdict["reference"] == "transformers, float32"
