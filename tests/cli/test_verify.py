"""`tilewright verify`: what agrees, what does not, and where it went wrong."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from tilewright.api import verify_module
from tilewright.cli.app import run
from tilewright.codegen.cpp import scalars
from tilewright.passes.decompose import Decompose
from tilewright.passes.rewrite import replace_nodes

from ..models.tiny import make

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(3, 4)
        self.linear = torch.nn.Linear(4, 6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, places, scale=1.0):
        self.calls += 1
        y = torch.tanh(self.linear(x + self.table(places))) * scale + self.calls
        return {"y": y, "best": y.argmax(-1), "rows": x.shape[0]}
"""
GRAPH = """\
graph @g
  dim n in [0, ]
  input %x : f32[n, 3]
  state %s : f32[3]
{
  %0 = exp(%x) : f32[n, 3]
  %1 = sum(%0) {axes=[0]} : f32[3]
  %2 = add(%1, %s) : f32[3]
  update %s = %2
  return %0, %2
}
"""
INPUTS = ("-i", "x=f32[rows, 4]", "-i", "places=i64[rows]", "-i", "scale=2.5", "--dim", "rows=2..9")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(SOURCE)
    (tmp_path / "g.ir").write_text(GRAPH)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("nets", None)


def verify(capsys, *args, code=0):
    """The verdict, as `--json` prints it, and what is printed as an error."""
    with pytest.raises(SystemExit) as end:
        run(["verify", *map(str, args), "--target", "cpu", "--json", "-q"])
    printed = capsys.readouterr()
    assert end.value.code == code, printed.err
    return json.loads(printed.out) if printed.out else None, printed.err


def test_a_module_at_several_sizes(folder, capsys):
    """With integers that it takes, and with states that go on from call to call."""
    verdict, _ = verify(capsys, "nets.py:Net", *INPUTS)
    assert verdict["right"]
    assert verdict["reference"] == "PyTorch, eager"
    assert [case["what"] for case in verdict["cases"]] == [
        "random, rows=2", "random, rows=5", "random, rows=9",
    ]  # fmt: skip
    bounds = [result["bound"] for result in verdict["cases"][0]["results"]]
    assert bounds == [1e-4, 0, 0]
    assert verdict["suspect"] is None


def test_arrays_of_a_file(folder, capsys):
    np.savez("given.npz", x=np.ones((3, 4), np.float32), places=np.array([2, 0, 1]))
    given = (*INPUTS, "--arrays", "given.npz")
    verdict, _ = verify(capsys, "nets.py:Net", *given, "--tolerance", "1e-9", code=1)
    assert verdict["cases"][0]["what"] == "the arguments given"
    assert {result["bound"] for case in verdict["cases"] for result in case["results"]} == {0, 1e-9}
    _, said = verify(capsys, "nets.py:Net", *INPUTS, "--arrays", "nets.py", code=1)
    assert "nets.py does not hold arrays by name" in said


def sines(graph):
    """The graph with sin in place of tanh."""
    return replace_nodes(graph, lambda b, node, x: [b.sin(*x)] if node.op.name == "tanh" else None)


def test_the_pass_and_the_value_that_moved_are_named(folder, capsys, monkeypatch):
    real = Decompose.run
    monkeypatch.setattr(Decompose, "run", lambda self, graph: sines(real(self, graph)))
    verdict, said = verify(capsys, "nets.py:Net", *INPUTS, "--bisect", code=1)
    assert not verdict["right"]
    suspect = verdict["suspect"]
    assert (suspect["stage"], suspect["name"]) == ("pass", "decompose")
    assert "= sin(" in suspect["value"]
    assert suspect["error"] > suspect["bound"]
    assert "results differ from PyTorch, eager" in said
    assert "first moved by pass decompose" in said


def test_the_kernel_that_is_wrong_is_named(folder, capsys, monkeypatch):
    monkeypatch.setitem(scalars._CALLS, "tanh", "tw_sin")
    verdict, _ = verify(capsys, "nets.py:Net", *INPUTS, "--bisect", code=1)
    suspect = verdict["suspect"]
    assert suspect["stage"] == "kernel"
    assert suspect["error"] > 1


def test_what_was_imported_otherwise_is_named(folder, capsys, monkeypatch):
    real = verify_module.import_module
    monkeypatch.setattr(
        verify_module, "import_module",
        lambda *a, **k: replace(i := real(*a, **k), graph=sines(i.graph)),
    )  # fmt: skip
    verdict, _ = verify(capsys, "nets.py:Net", *INPUTS, "--tolerance", "1e-9", "--bisect", code=1)
    suspect = verdict["suspect"]
    assert (suspect["stage"], suspect["name"], suspect["value"]) == ("import", "Net", "result['y']")


def test_the_text_of_a_graph(folder, capsys, monkeypatch):
    verdict, _ = verify(capsys, "g.ir")
    assert verdict["right"]
    assert [len(case["results"]) for case in verdict["cases"]] == [3] * 3  # two outputs, one state
    monkeypatch.setitem(scalars._CALLS, "exp", "tw_tanh")
    verdict, said = verify(capsys, "g.ir", "--bisect", code=1)
    assert verdict["suspect"]["stage"] == "kernel"
    assert "= exp(%x)" in verdict["suspect"]["value"]
    assert "differ from the reference" in said


def test_an_onnx_model(tmp_path, capsys):
    """Beside onnxruntime, with a dim of the model's own, with arrays, and stored narrow."""
    onnx = pytest.importorskip("onnx")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 3])
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
        onnx.helper.make_node("Tanh", ["h"], ["y"]),
    ]
    w = onnx.numpy_helper.from_array(np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3), "w")
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    verdict, _ = verify(capsys, path)
    assert verdict["right"]
    assert verdict["reference"] in ("onnxruntime", "the reference of onnx")
    assert len(verdict["cases"]) == 3
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), np.float32))
    verdict, _ = verify(capsys, path, "--arrays", tmp_path / "a.npz", "--dtype", "bf16")
    assert [case["what"] for case in verdict["cases"]] == ["the arrays given"]
    assert verdict["cases"][0]["results"][0]["bound"] == 5e-2


def test_what_rounding_decides_in_an_onnx_model(tmp_path, capsys, monkeypatch):
    """exp(log(k + 1/2)) is rounded up or down by its last bit: two runtimes differ, both right."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kinds = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n"]) for n in "xy"]
    ops = ("Log", "x", "a"), ("Exp", "a", "b"), ("Round", "b", "y")
    nodes = [onnx.helper.make_node(op, [x], [y]) for op, x, y in ops]
    graph = onnx.helper.make_graph(nodes, "g", kinds[:1], kinds[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path, given = tmp_path / "m.onnx", tmp_path / "a.npz"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    np.savez(given, x=np.arange(2000, dtype=np.float32) + 0.5)
    verdict, _ = verify(capsys, path, "--arrays", given)
    (result,) = verdict["cases"][0]["results"]
    assert re.fullmatch(r"y of (the program|onnxrun\w+), in multiples of what .*", result["name"])
    assert result["error"] <= result["bound"] == 1.0
    monkeypatch.setitem(scalars._CALLS, "log", "tw_exp")
    verdict, _ = verify(capsys, path, "--arrays", given, "--bisect", code=1)
    assert verdict["suspect"]["stage"] == "kernel"
    (result,) = verdict["cases"][0]["results"]
    assert result["name"].startswith("y of the program")
    assert result["error"] > 1


def test_a_language_model(tmp_path, capsys):
    """Logits of prompts alone and together; nothing is to blame for what rounding does."""
    model = tmp_path / "model"
    make("llama").save_pretrained(model)
    verdict, _ = verify(capsys, model, "--dtype", "bf16")
    assert verdict["right"]
    assert [len(case["results"]) for case in verdict["cases"]] == [1, 1, 1, 3]
    assert all(r["error"] < 1e-5 for case in verdict["cases"] for r in case["results"])
    verdict, said = verify(capsys, model, "--tolerance", "1e-12", "--bisect", code=1)
    assert verdict["suspect"] is None
    assert "of 6 results differ from transformers, float32" in said


def test_what_options_are_for(folder, capsys):
    _, said = verify(capsys, "g.ir", "-i", "x=f32[3]", code=1)
    assert "--input, --dim and --arrays are for those" in said
