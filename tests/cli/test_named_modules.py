"""`tilewright compile package.module:name` and `inspect` of what it wrote."""

import json
import re
import sys

import pytest
import torch

import tilewright
from tilewright.cli.app import run
from tilewright.cli.named_module import is_named, read_inputs
from tilewright.ir.errors import OptionError

SOURCE = """
import torch
from torch.export import Dim

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 6)
        self.dropout = torch.nn.Dropout()

    def forward(self, x, scale=1.0, *, mask=None):
        y = self.dropout(self.linear(x)) * scale
        return y if mask is None else y.masked_fill(mask, 0.0)

class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.flip(0), (x,))

class Called(torch.nn.Module):
    def forward(self, x):
        return torch.igamma(x, x)

net = Net()
class inner: net = net
def with_examples(): return Net(), (torch.randn(3, 4),), {"x": {0: Dim("n")}}
def fails(): raise ValueError("no luck")
number, many = 3, (1, 2, 3, 4)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a Python module of its own name in it."""
    name = f"nets_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def tilewright_(*args, code=0):
    """Run the command line in this process."""
    with pytest.raises(SystemExit) as end:
        run([*map(str, args)])
    assert end.value.code == code


def net():
    names = {}
    exec(SOURCE, names)
    return names["Net"]().eval()


def test_a_module_by_its_name(folder, tmp_path, capsys):
    mask = "mask=bool[rows, 6]"
    inputs = ("-i", "x=f32[rows, 4]", "-i", "scale=2.5", "-i", mask, "--dim", "rows=2..9")
    tilewright_(
        "compile", f"{folder}:inner.net", *inputs, "-o", "a.zip", "--target", "cpu", "--json"
    )
    figures = json.loads(capsys.readouterr().out)
    assert (figures["target"], figures["programs"], figures["fallback_ops"]) == ("cpu", 1, 0)
    assert figures["weight_bytes"] == 4 * (24 + 6)
    x, hidden = torch.randn(7, 4), torch.arange(42).reshape(7, 6) % 2 == 0
    with tilewright.load("a.zip") as loaded:
        with torch.no_grad():
            right = net()(x, 2.5, mask=hidden)
        torch.testing.assert_close(loaded(x, 2.5, mask=hidden), right)
        with pytest.raises(tilewright.DimError, match=r"rows.* is 1, its range is \[2, 9\]"):
            loaded(x[:1], 2.5, mask=hidden[:1])
    tilewright_("inspect", "a.zip")
    shown = capsys.readouterr().out
    for part in (
        "module    Net(x, scale=..., *, mask=...)",
        "weights   2 f32 (120 B)",
        "for rows in [2, 9]",
        "takes x: f32[rows, 4], scale: 2.5, mask: bool[rows, 6]",
        "gives f32[rows, 6]",
    ):
        assert part in shown
    tilewright_("inspect", "a.zip", "--json", "--at", "rows=3")
    facts = json.loads(capsys.readouterr().out)
    assert facts["sizes"] == {"rows": 3}
    assert facts["call"]["programs"][0]["dims"] == {"rows": "[2, 9]"}
    tilewright_("inspect", "a.zip", "--program", "1", code=1)
    assert "the artifact has 1, from 0 on" in capsys.readouterr().err


def test_calls_of_pytorch_are_told_or_with_strict_refused(folder, capsys):
    given = ("compile", f"{folder}:Called", "-i", "x=f32[3]", "-o", "c.zip", "--target", "cpu")
    tilewright_(*given, "--strict", code=1)
    said = capsys.readouterr().err
    assert re.search(r"1 unsupported operation(.|\n)*aten.igamma(.|\n)*strict", said)
    tilewright_(*given)
    assert " kernels, 1 calls of PyTorch, " in capsys.readouterr().out


def test_launches_inside_of_branches_count_and_other_steps_do_not(folder, capsys):
    tilewright_(
        *("compile", f"{folder}:Branch", "-i", "x=f32[3]"),
        *("-o", "b.zip", "--target", "cpu", "--json"),
    )
    compiled = json.loads(capsys.readouterr().out)
    tilewright_("inspect", "b.zip", "--json")
    inspected = json.loads(capsys.readouterr().out)
    assert compiled["launches"] == inspected["launches"]
    assert compiled["launches"] == sum(kernel["launches"] for kernel in inspected["kernels"])
    assert compiled["launches"] > inspected["call"]["programs"][0]["steps"]


def test_what_a_file_makes_with_its_examples(folder, capsys):
    tilewright_("compile", f"{folder}.py:with_examples", "-o", "a", "--target", "cpu", "-q")
    with tilewright.load("a") as loaded, torch.no_grad():
        for rows in (1, 6):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(loaded(x), net()(x))


def test_an_exported_program_is_read_only_when_trusted(folder, capsys):
    module, x = net(), torch.randn(3, 4)
    shapes = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    torch.export.save(torch.export.export(module, (x,), dynamic_shapes=shapes), "net.pt2")
    tilewright_("compile", "net.pt2", "-o", "a", "--target", "cpu", code=1)
    assert "may run code from its file" in capsys.readouterr().err
    tilewright_("compile", "net.pt2", "-o", "a", "--target", "cpu", "--trust", "-q")
    with tilewright.load("a") as loaded, torch.no_grad():
        torch.testing.assert_close(loaded(x[:2]), module(x[:2]))
        with pytest.raises(tilewright.DimError, match="is 65, its range is"):
            loaded(torch.zeros(65, 4))


ERRORS = {
    "nothing says what the module is called with": ("{}:net",),
    "has no attribute 'nothing'": ("{}:nothing",),
    "ValueError: no luck": ("{}:fails",),
    "got a int": ("{}:number",),
    "many gave 4 things": ("{}:many",),
    "No module named 'nowhere'": ("nowhere:net",),
    "nowhere.py does not exist": ("nowhere.py:net",),
    "nowhere.pt2 does not exist": ("nowhere.pt2",),
    "does not compute for these inputs": ("{}:net", "-i", "x=f32[n, 5]"),
    "missing a required argument: 'x'": ("{}:net", "-i", "z=f32[n, 4]"),
    "weights_dtype is 'f16'": ("{}:net", "-i", "x=f32[n, 4]", "--dtype", "f16"),
    "--kv-cache-dtype is for language models": ("{}:net", "--kv-cache-dtype", "f16"),
    "is no module that is named": ("demo", "-i", "x=f32[n, 4]"),
    "its inputs and sizes already": ("net.pt2", "-i", "x=f32[n, 4]"),
}


@pytest.mark.parametrize("says", ERRORS)
def test_what_is_wrong_is_told(folder, capsys, says):
    args = [part.format(folder) for part in ERRORS[says]]
    tilewright_("compile", *args, "-o", "a", "--target", "cpu", code=1)
    printed = capsys.readouterr().err
    assert says in printed
    assert "bug in Tilewright" not in printed


def test_which_texts_name_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(map(is_named, ("a:b", "a.b:c.d", "dir/a.py:b", "a.pt2")))
    (tmp_path / "a:b").mkdir()
    assert not any(map(is_named, ("a:b", "demo", "model.gguf", "a:", ":b", "http://x/y")))


def test_inputs_and_dims():
    inputs = ["x=f32[a, 3, b]", "y = i64[b]", "n=null", 't=[1, "s"]', "z=bf16[]", "w=u8[c, 0]"]
    arguments, shapes = read_inputs(inputs, ["b=2..4", "a=7", "c=0.."])
    assert arguments["x"].shape[:2] == (7, 3)
    assert 2 <= arguments["x"].shape[2] == arguments["y"].shape[0] <= 4
    assert (arguments["y"].dtype, arguments["z"].dtype) == (torch.int64, torch.bfloat16)
    assert (arguments["n"], arguments["t"]) == (None, [1, "s"])
    assert (shapes["x"].keys(), shapes["y"].keys()) == ({2}, {0})
    assert shapes["z"] is shapes["n"] is None
    assert read_inputs(["x=f32[3]"], [])[1] is None


@pytest.mark.parametrize(
    ("inputs", "dims", "says"),
    [
        (["x"], [], "'x' does not describe"),
        (["=f32[3]"], [], "no name of an argument"),
        (["x=f33[3]"], [], "'f33' is no dtype"),
        (["x=f32[-1]"], [], "'-1' is neither a number nor a name"),
        (["x=f32[3"], [], "neither a type nor a constant"),
        (["x=f32[n]"], ["m=1..2"], "gives a range to m"),
        (["x=f32[n]"], ["n=5..2"], "no range"),
        (["x=f32[n]"], ["n=1-2"], "no range"),
    ],
)
def test_bad_inputs_are_named(inputs, dims, says):
    with pytest.raises(OptionError, match=says):
        read_inputs(inputs, dims)
