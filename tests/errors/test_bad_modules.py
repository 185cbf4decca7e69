"""`compile` under a rude user: what is no module, odd arguments, compilers that fail, threads."""

import os
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import tilewright
from tilewright.codegen.cpp import binary as cpp
from tilewright.frontend.explain import explain
from tilewright.ir import switches
from tilewright.ir.errors import TilewrightError


class Scaled(nn.Module):
    """The module most tests call: x: [n, 4] -> [n, 3]."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, scale=2.0):
        return self.linear(x) * scale


class WithoutForward(nn.Module):
    pass


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Scaled().eval()


@pytest.fixture(scope="module")
def compiled(module):
    return tilewright.compile(module, (torch.randn(3, 4),), target="cpu")


def eager(module, *args, **kwargs):
    with torch.no_grad():
        return module(*args, **kwargs)


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        (None, "no torch.nn.Module\n  got a NoneType"),
        (Scaled, "got the class Scaled\n  make an instance of it"),
        (lambda x: x, "put the computation into the forward method"),
        (WithoutForward(), "the module has no forward method"),
    ],
)
def test_what_is_no_module(subject, says):
    with pytest.raises(tilewright.UnsupportedModel, match=says):
        tilewright.compile(subject)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module():
    scripted = torch.jit.script(nn.Linear(4, 3))
    with pytest.raises(tilewright.UnsupportedModel, match="scripted module cannot be traced"):
        tilewright.compile(scripted)


X = torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("args", "options", "says"),
    [
        (X, {}, "example_inputs is a Tensor(.|\n)*write compile"),
        ((), {}, r"missing a required argument: 'x'"),
        ((X, 1.0, 2.0), {}, "too many positional arguments"),
        ((X,), {"options": ["a"]}, "options is a list"),
        ((X,), {"options": {"weights_dtype": [1]}}, r"option weights_dtype is \[1\]"),
        ((X,), {"target": "tpu"}, "no target named 'tpu'"),
        ((X,), {"dynamic_shapes": True}, "dynamic_shapes is True"),
        ((X,), {"dynamic_shapes": {"y": {0: Dim("b")}}}, "names 'y', which is no argument"),
        ((X,), {"dynamic_shapes": {"x": {5: Dim("b")}}}, "names axis 5"),
        ((X,), {"dynamic_shapes": {"x": {1: Dim("b")}}}, "needs a fixed size where a dynamic"),
    ],
)
def test_bad_calls_of_compile(module, args, options, says):
    with pytest.raises(TilewrightError, match=says):
        tilewright.compile(module, args, **{"target": "cpu", **options})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "do not fit the module's forward"),
        ((X,), {"other": 1}, "unexpected keyword argument 'other'"),
        ((X.double(),), {}, "x is f64, must be f32"),
        ((X.long(),), {}, "x is i64, must be f32"),
        ((X + 0j,), {}, "dtype has no counterpart here"),
        ((X.numpy().astype(">f4"),), {}, "dtype has no counterpart here"),
        ((X.to("meta"),), {}, "x is on the meta device"),
        ((X.to_sparse(),), {}, r"layout torch.sparse_coo(.|\n)*x.to_dense\(\)"),
        ((nn.Parameter(X),), {}, r"detached first: x.detach\(\)"),
        (("text",), {}, "must be Tensor, not str"),
        (([[1.0]],), {}, "the module does not take these inputs"),
        ((torch.zeros(3, 5),), {}, r"now x \[3, 5\], before x \[3, 4\](.|\n)*reduction dim"),
    ],
)
def test_bad_arguments(compiled, args, kwargs, says, capfd):
    with pytest.raises(TilewrightError, match=says):
        compiled(*args, **kwargs)
    assert capfd.readouterr().err == ""  # torch logs its own failures at length
    assert len(compiled.variants) == 1


def test_all_ways_to_give_the_same(module):
    compiled = tilewright.compile(module, target="cpu")
    x = torch.randn(3, 4)
    expected = eager(module, x)
    with torch.no_grad():
        for got in (
            *(compiled(x), compiled(x=x), compiled(nn.Parameter(x))),
            *(compiled(x.t().contiguous().t()), compiled(torch.stack([x, x])[1])),
            torch.from_numpy(compiled(np.asfortranarray(x.numpy()))),
            torch.from_numpy(compiled(x.numpy()[::-1])[::-1].copy()),
        ):
            torch.testing.assert_close(got, expected)
        # torch keeps this negation as a mark beside the memory, which DLPack does not carry
        torch.testing.assert_close(compiled(torch._neg_view(x)), eager(module, -x))
    assert len(compiled.variants) == 1
    torch.testing.assert_close(compiled(x, 3.0), eager(module, x, 3.0))
    torch.testing.assert_close(compiled(x, scale=3.0), eager(module, x, 3.0))
    assert len(compiled.variants) == 2  # another constant is another program
    first = tilewright.compile(module, target="cpu")(x.numpy())  # NumPy at the very first call
    assert isinstance(first, np.ndarray)


def test_control_flow_on_values_says_so_and_nothing_else(capfd):
    class Loop(nn.Module):
        def forward(self, x):
            while x.sum() > 0:
                x = x - 1
            return x

    with pytest.raises(tilewright.UnsupportedModel, match=r"depends on the values(.|\n)*while x"):
        tilewright.compile(Loop(), (torch.ones(3),), target="cpu")
    assert capfd.readouterr() == ("", "")


def test_the_modules_own_errors_pass_through():
    class Refusing(nn.Module):
        def forward(self, x):
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        tilewright.compile(Refusing(), (X,), target="cpu")


def test_states_go_along_when_programs_change():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.total.add_(x.sum())
            return self.total * 1

    compiled = tilewright.compile(Counter(), target="cpu")
    shapes = [(3,), (2, 2), (3,), (2, 2), (3,)]  # two ranks, so two programs that take turns
    assert [compiled(torch.ones(s)).item() for s in shapes] == [3, 7, 10, 14, 17]
    assert len(compiled.variants) == 2


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
@pytest.mark.parametrize(("target", "says"), [("sm_90", "needs an NVIDIA GPU"), ("gfx942", "hip")])
def test_a_gpu_that_is_not_here_can_be_compiled_for_not_run(module, target, says):
    compiled = tilewright.compile(module, (X,), target=target)
    assert compiled.program.target == target
    with pytest.raises(TilewrightError, match=says):
        compiled(X)
    with pytest.raises(TilewrightError, match=says):  # before compiling, not after
        tilewright.compile(Refused(), target=target)(X)


class Refused(nn.Module):
    def forward(self, x):
        raise AssertionError("this must not be traced")


def test_more_memory_than_there_is():
    class Outer(nn.Module):
        def forward(self, x):
            return x[:, None] * x[None], (torch.exp(x[:, None] * x[None]) @ x[:, None]).sum()

    dynamic = {"x": {0: Dim("n", min=1)}}
    compiled = tilewright.compile(Outer(), (X[0],), dynamic_shapes=dynamic, target="cpu")
    with pytest.raises(tilewright.OutOfMemory, match=r"needed: 4,000,\d+,\d+,000 bytes; available"):
        compiled(torch.ones(10**6))
    assert compiled(torch.ones(2))[0].shape == (2, 2)  # and it goes on


# ---- threads -------------------------------------------------------------------------------


def in_threads(count, function):
    """Run function(i) in so many threads at once; what they raised."""
    errors = []

    def work(number):
        try:
            function(number)
        except BaseException as error:  # noqa: BLE001  (reported by the caller)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def test_threads_share_a_module_and_compile_at_once(module):
    compiled = tilewright.compile(module, target="cpu")

    def work(number):
        own = nn.Linear(4, 2 + number % 2)
        mine = tilewright.compile(own, target="cpu")
        for rows in (2, 3):
            x = torch.full((rows, 4), float(number + 1))
            torch.testing.assert_close(compiled(x), eager(module, x))
            torch.testing.assert_close(mine(x), eager(own, x))

    assert in_threads(3, work) == []
    assert len(compiled.variants) == 2


# ---- the C++ compiler ----------------------------------------------------------------------

SCRIPTS = {
    "failing": ('echo "the moon is wrong" >&2; exit 3', r"ended with 3:\n  the moon is wrong"),
    "killed": ("kill -9 $$", r"was ended by SIGKILL:\n  it said nothing"),
    "doing-nothing": ("exit 0", "made no shared library(.|\n)*there is none"),
    "writing-junk": (
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo junk > "$2"; shift; done',
        "made no shared library(.|\n)*5 bytes of something else",
    ),
    "hanging": ("sleep 100", r"was ended by SIGKILL:\n  no end after 0.5 s"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_compilers_that_fail(tmp_path, monkeypatch, kind):
    script, says = SCRIPTS[kind]
    path = tmp_path / kind
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    if kind == "hanging":
        monkeypatch.setattr(cpp, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = nn.Linear(4, 5)
    with (
        switches.switches(cxx=path),
        pytest.raises(tilewright.BuildError, match=says) as error,
    ):
        tilewright.compile(own, (X,), target="cpu")
    assert error.value.where.startswith(str(tmp_path))  # the source, or the library, to look at


@pytest.mark.parametrize(
    ("name", "says"),
    [("no-such-compiler", "no C\\+\\+ compiler 'no-such-compiler'"), ("text", "does not start")],
)
def test_what_is_no_compiler(tmp_path, name, says):
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "text").chmod(0o755)
    cxx = tmp_path / name if name == "text" else name
    with switches.switches(cxx=cxx), pytest.raises(tilewright.BuildError, match=says):
        tilewright.compile(nn.Linear(4, 5), (X,), target="cpu")


def test_a_pipeline_that_was_stopped_has_no_program(module):
    with (
        switches.switches(stop_after="decompose"),
        pytest.raises(
            tilewright.PassError, match="stopped after decompose, so there is no program"
        ),
    ):
        tilewright.compile(module, (X,), target="cpu")


def test_the_line_is_the_users_though_its_path_begins_as_that_of_torch(tmp_path, monkeypatch):
    path = tmp_path / "torch_models.py"
    path.write_text("def forward():\n    raise ValueError('data-dependent')\n")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    names = {}
    exec(compile(path.read_text(), path, "exec"), names)
    with pytest.raises(ValueError) as error:
        names["forward"]()
    assert explain(error.value).where.startswith("torch_models.py:2")
