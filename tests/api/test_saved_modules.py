"""Modules that are compiled, saved and loaded: called as before, without what compiled them."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import namedtuple
from importlib import metadata

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.export import Dim

import tilewright
from tilewright import ArtifactError, DeviceError, DimError, OptionError, ShapeError
from tilewright.runtime.array import Array
from tilewright.runtime.storage import digest

from ..models import tiny

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Scores:
    best: torch.Tensor
    rest: list
    rows: int


class Scorer(nn.Module):
    """Containers in and out, a constant argument, and a buffer that counts calls."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 40)
        self.register_buffer("calls", torch.full((2,), 10.0))

    def forward(self, pair, scale=1.0, *, options):
        self.calls.add_(1)
        y = self.linear(pair[0]) * scale + options["bias"]
        return {
            "scores": Scores(y, [y.sum(-1), None], pair[1].shape[0]),
            "pair": Pair(self.calls * 1, "text"),
        }


@pytest.fixture(scope="module")
def scorer():
    torch.manual_seed(1)
    return Scorer().eval()


def call(x, scale=1.0):
    return ((x, x),), {"scale": scale, "options": {"bias": X[:1, :1] * 0 + 0.5}}


@pytest.fixture(scope="module")
def saved(scorer, tmp_path_factory):
    """A program for 5 rows, and one for each `scale` and any number of rows."""
    compiled = tilewright.compile(scorer, target="cpu")
    for rows, scale in ((5, 1.0), (3, 1.0), (4, 2.5)):
        args, kwargs = call(X[:rows], scale)
        compiled(*args, **kwargs)
    return compiled.save(tmp_path_factory.mktemp("saved") / "scorer.zip")


@pytest.fixture
def loaded(saved):
    with tilewright.load(saved) as module:
        yield module


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("rows", [1, 5])
def test_torch_tensors_give_what_the_module_gives(scorer, loaded, rows, scale):
    args, kwargs = call(X[:rows], scale)
    got = loaded(*args, **kwargs)
    with torch.no_grad():
        right = scorer(*args, **kwargs)
    torch.testing.assert_close(got["scores"].best, right["scores"].best)
    torch.testing.assert_close(got["scores"].rest, right["scores"].rest)
    assert (got["scores"].rows, got["pair"].right) == (rows, "text")
    assert set(got["scores"]) == {"best", "rest", "rows"}


def test_arguments_may_go_by_name_as_the_module_takes_them(loaded):
    args, kwargs = call(X)
    by_name = loaded(pair=args[0], **kwargs)["scores"].best
    torch.testing.assert_close(
        loaded(args[0], 1.0, options=kwargs["options"])["scores"].best, by_name
    )


def test_numpy_gives_arrays(scorer, loaded):
    bias = np.full((1, 1), 0.5, np.float32)
    x = X.numpy()
    got = loaded((x, x), options={"bias": bias}, scale=1.0)
    assert type(got["scores"].best) is Array
    args, kwargs = call(X)
    with torch.no_grad():
        right = scorer(*args, **kwargs)["scores"].best
    np.testing.assert_allclose(got["scores"].best, right, rtol=1e-5, atol=1e-6)


def test_buffers_go_on_from_what_was_saved(loaded):
    """Three calls were made before, from 10 on; whichever program runs."""
    counts = []
    for scale in (1.0, 2.5, 1.0):
        args, kwargs = call(X, scale)
        counts.append(loaded(*args, **kwargs)["pair"].left[0].item())
    assert counts == [14.0, 15.0, 16.0]


def test_calls_that_were_not_compiled_are_refused(loaded):
    positional, named = call(X)
    for error, says, (args, kwargs) in [
        (ShapeError, r"scale: it was 2.5, now it is 3.0(.|\n)*it was 1.0", call(X, 3.0)),
        (DimError, r"axis 1 is 5, must be 6", call(X[:, :5])),
        (ShapeError, "is f64, must be f32", call(X.double())),
        (ShapeError, r"missing a required argument: 'options'", (positional, {"scale": 1.0})),
        (ShapeError, r"forward\(pair", ((), named)),
        (DeviceError, "on the meta device", call(X.to("meta"))),
    ]:
        with pytest.raises(error, match=says):
            loaded(*args, **kwargs)


def test_it_is_closed_and_never_copied(saved):
    module = tilewright.load(saved)
    assert repr(module) == "LoadedModule(Scorer for cpu, 3 programs)"
    assert [p["fallback_ops"] for p in module.report] == [0, 0, 0]
    with pytest.raises(tilewright.UnsupportedModel, match="cannot be copied or pickled"):
        module.__reduce_ex__(4)
    module.close()
    args, kwargs = call(X)
    with pytest.raises(OptionError, match="was closed"):
        module(*args, **kwargs)
    with pytest.raises(OptionError, match="without the option max_model_len"):
        tilewright.load(saved, max_model_len=3)
    with pytest.raises(ArtifactError, match=r"no language model(.|\n)*module Scorer"):
        tilewright.LLM(saved)


def test_weights_are_stored_once(saved, tmp_path):
    shutil.unpack_archive(saved, tmp_path)
    with safe_open(tmp_path / "weights.safetensors", "np") as file:
        names = {name for name in file.keys() if not name.startswith("__pad_")}  # noqa: SIM118
    assert names == {"linear.bias", "linear.weight"}
    tools = json.loads((tmp_path / "manifest.json").read_text())["tools"]
    assert tools["torch"] == metadata.version("torch")


def test_equal_names_with_other_values_are_kept_apart(tmp_path):
    """A weight may be prepared in one way for one program, and in another way for the next."""

    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))

        def forward(self, x, power: float = 1.0):
            return x @ (self.w * power)

    module = Folded()
    compiled = tilewright.compile(module, target="cpu")
    right = {power: compiled(X, power) for power in (1.0, 2.0, 3.0)}
    with tilewright.load(compiled.save(tmp_path / "folded")) as loaded:
        for power, result in right.items():
            torch.testing.assert_close(loaded(X, power), result)


def test_declared_sizes_and_what_is_written_into_arguments(tmp_path):
    class Adds(nn.Module):
        def forward(self, x):
            x.add_(1)
            return (x * 2).sum(0)

    dims = ({0: Dim("rows", min=1, max=9)},)
    compiled = tilewright.compile(Adds(), (X.clone(),), dynamic_shapes=dims, target="cpu")
    with tilewright.load(compiled.save(tmp_path / "adds")) as loaded:
        for given in (X[:2].clone(), X.clone()):
            result = loaded(x=given)
            torch.testing.assert_close(given, X[: len(given)] + 1)
            torch.testing.assert_close(result, given.sum(0) * 2)
        array = X.numpy().copy()
        np.testing.assert_allclose(loaded(array), 2 * array.sum(0), rtol=1e-5)
        np.testing.assert_array_equal(array, X.numpy() + 1)
        with pytest.raises(DimError, match=r"rows.* is 10, its range is \[1, 9\]"):
            loaded(torch.zeros(10, 6))


def test_what_cannot_be_saved_says_why(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return x * 2, x.dtype

    compiled = tilewright.compile(Odd(), target="cpu")
    with pytest.raises(OptionError, match="nothing is compiled yet"):
        compiled.save(tmp_path / "odd")
    compiled(X)
    with pytest.raises(tilewright.UnsupportedModel, match=r"result\[1\] is torch.float32, a dtype"):
        compiled.save(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()


def test_for_a_device_that_is_not_here(tmp_path):
    pytest.importorskip("triton")
    module = nn.Linear(6, 16)
    compiled = tilewright.compile(module, (X,), target="sm_90")
    if compiled.variants[0].executable is not None:
        pytest.skip("it is here")
    path = compiled.save(tmp_path / "gpu")
    with pytest.raises(DeviceError, match="a program for sm_90 needs an NVIDIA GPU"):
        tilewright.load(path)
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(tilewright.UnsupportedModel, match="read when it is saved"):
        compiled.save(tmp_path / "again")


def test_a_damaged_module_is_refused(saved, tmp_path):
    path = tmp_path / "damaged"
    shutil.unpack_archive(saved, path)
    good = json.loads((path / "module.json").read_text())
    for change in ({"programs": []}, {"parameters": 3}, {"programs": [3]}, {"programs": {"a": 1}}):
        (path / "module.json").write_text(json.dumps(good | change))
        manifest = json.loads((path / "manifest.json").read_text())
        data = (path / "module.json").read_bytes()
        manifest["files"]["module.json"] = {"bytes": len(data), "sha256": digest(data)}
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ArtifactError, match="damaged"):
            tilewright.load(path)


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "triton", "transformers", "sympy", "gguf", "accelerate"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
import tilewright
with tilewright.load(sys.argv[1]) as model:
    {run}
layers = ("passes", "codegen", "frontend", "cli")
print(sorted(n for n in sys.modules if n.startswith(tuple(f"tilewright.{l}" for l in layers))))
"""


def run_blocked(path, run: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.replace("{run}", run), str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_saved_module_runs_without_what_compiled_it(saved):
    run = (
        "import numpy as np; x = np.ones((4, 6), np.float32);"
        " y = model((x, x), options={'bias': x[:1, :1]}, scale=1.0);"
        " print(y['scores'].rows, y['scores'].best, np.asarray(y['scores'].best).shape)"
    )
    assert run_blocked(saved, run) == "4 Array(f32[4, 40] on cpu) (4, 40)\n[]\n"


def test_a_language_model_runs_without_what_compiled_it(tmp_path):
    with tilewright.LLM(tiny.make("llama", num_hidden_layers=1), target="cpu") as llm:
        path = llm.save(tmp_path / "llm")
    run = "print(len(model.generate([[5, 6, 7]])[0].outputs[0].token_ids) > 0)"
    assert run_blocked(path, run) == "True\n[]\n"
