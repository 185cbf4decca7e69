"""torch.compile with our backend: what the model does in eager, it does compiled."""

import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

from tilewright.api.dynamo_backend import _digest
from tilewright.api.dynamo_backend import tilewright as backend
from tilewright.ir.errors import OptionError, UnsupportedOp

CASE = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _begin_anew():
    torch._dynamo.reset()
    counters.clear()


def compiled(model, **given):
    return torch.compile(model, backend=backend, **given)


def close(got, right):
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


class Layers(nn.Module):
    """A product, a normalization with statistics, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 12), nn.BatchNorm1d(12)
        self.second = nn.Linear(12, 8, bias=False)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x, scale=1.0):
        return self.second(self.norm(self.first(x)).relu()) * scale + self.shift


def test_weights_are_those_of_the_call():
    model = Layers().eval()
    with torch.no_grad():
        fast = compiled(model)
        close(fast(CASE), model(CASE))
        model.first.weight.data.mul_(-2)  # which torch does not count as a change
        close(fast(CASE), model(CASE))
        model.load_state_dict(Layers().state_dict())
        close(fast(CASE), model(CASE))
        model.shift.numpy()[:] = 5
        close(fast(CASE), model(CASE))
        assert counters["tilewright"]["graphs"] == 1
        model.second = nn.Linear(12, 3)
        model.register_buffer("shift", torch.ones(3))
        close(fast(CASE), model(CASE))


def _sgd(weight):
    weight.grad = torch.ones_like(weight) * 1e-3
    torch.optim.SGD([weight], lr=0.5).step()


WRITES = {
    "in place": lambda w: w[3].mul_(1.5),
    "one element of data": lambda w: w.data[401, 7].neg_(),
    "data": lambda w: setattr(w, "data", w.data * 2),
    "numpy": lambda w: np.copyto(w.detach().numpy()[:, 5], 1.0),
    "optimizer": _sgd,
    "rows change places": lambda w: w.copy_(w.roll(1, 0)),
    "signs": lambda w: w.data.neg_(),
}


def test_whatever_writes_into_weights_is_seen():
    model = nn.Linear(130, 601)  # longer than what a digest holds as it is
    x = torch.randn(3, 130)
    with torch.no_grad():
        fast = compiled(model)
        close(fast(x), model(x))
        for name, write in WRITES.items():
            before = fast(x)
            write(model.weight)
            assert not torch.equal(model(x), before), name
            close(fast(x), model(x))
        for assign in (False, True):
            model.load_state_dict(nn.Linear(130, 601).state_dict(), assign=assign)
            close(fast(x), model(x))
    assert counters["tilewright"]["graphs"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("size", [0, 1, 8 * 64 * 509, 700_003])
def test_a_digest_tells_values_apart(dtype, size):
    values = (torch.arange(size) % 2).to(dtype)
    same = _digest(values)
    assert same == _digest(values.clone()) == _digest(values.repeat_interleave(2)[::2])
    assert len(same) <= values.nbytes // 63 + 8 * 64 * 509
    for place in {0, size // 2, size - 1} if size else ():
        changed = values.clone()
        changed[place] = 1 - changed[place].int()
        assert _digest(changed) != same, place


def test_layers_of_one_kind_share_a_graph():
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                close(compiled(layer)(CASE), layer(CASE))
                layer.weight.data[0, 0] += 1
    assert counters["tilewright"]["graphs"] == 1


def test_train_mode_updates_its_statistics():
    model, other = Layers(), Layers()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        fast = compiled(model)
        for _ in range(2):
            close(fast(CASE), other(CASE))
        close(dict(model.named_buffers()), dict(other.named_buffers()))


def test_sizes_and_numbers_that_change_are_one_program():
    model = Layers().eval()
    with torch.no_grad():
        fast = compiled(model)
        for rows, scale in [(6, 1.0), (5, 1.0), (7, 1.5), (3, -2.5), (30, 0.25)]:
            x = CASE.repeat(5, 1)[:rows]
            close(fast(x, scale), model(x, scale))
        assert counters["tilewright"]["graphs"] <= 3
        close(fast(CASE[:1]), model(CASE[:1]))
        close(fast(CASE[:0]), model(CASE[:0]))


def test_a_number_is_a_size():
    def function(x, n):
        return x * n, torch.arange(n) + 1, n + x.shape[0]

    fast = compiled(function, dynamic=True)
    for n in (2, 5, 4):
        close(fast(CASE, n), function(CASE, n))
    assert counters["tilewright"]["graphs"] == 1


def test_sizes_that_cannot_be_dynamic_are_compiled_one_by_one():
    def function(x, n):
        return x[:n] * n

    fast = compiled(function, dynamic=True)
    for n in (2, 4, 2):
        close(fast(CASE, n), function(CASE, n))
    assert counters["tilewright"]["graphs"] == 2


def test_breaks_writes_and_aliases():
    def function(x, y):
        x.add_(1)
        view = x.view(-1)[2:]
        torch._dynamo.graph_break()
        y.t()[0] = 7
        return x.t(), view, y, (x @ y.t()).t()

    args, others = ([CASE.clone(), CASE.clone() + 1] for _ in range(2))
    got, right = compiled(function)(*args), function(*others)
    close(got, right)
    close(args, others)
    assert [g.stride() for g in got] == [r.stride() for r in right]
    assert got[2] is args[1]
    got[1].zero_()
    right[1].zero_()
    close(args, others)
    assert counters["tilewright"]["graphs"] == 2


def test_gradients_are_those_of_eager():
    model, other = Layers().eval(), Layers().eval()
    other.load_state_dict(model.state_dict())
    x, y = (CASE.clone().requires_grad_() for _ in range(2))
    got, right = compiled(model)(x), other(y)
    close(got, right)
    got.square().sum().backward()
    right.square().sum().backward()
    close(x.grad, y.grad)
    close([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])


def test_modes_of_torch_in_the_model():
    class Modes(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = nn.Linear(8, 1)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                low = self.energy(x)
            dots = torch.vmap(lambda a, b: (a * b).sum())(x, x + 1)
            with torch.enable_grad():
                z = x.detach().requires_grad_(True)
                force = torch.autograd.grad(self.energy(z).tanh().sum(), z)[0]
            return low, dots, force

    model = Modes().eval()
    with torch.no_grad():
        (low, *rest), (right, *others) = compiled(model)(CASE), model(CASE)
        close(rest, others)
        assert low.dtype is torch.bfloat16
        torch.testing.assert_close(low, right, rtol=2e-2, atol=2e-2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert compiled(model.energy)(CASE).dtype is torch.bfloat16


def test_threads_share_a_model():
    model = Layers().eval()
    fast, found = compiled(model), []

    def run(rows):
        with torch.no_grad():
            found.append((fast(CASE[:rows]), model(CASE[:rows])))

    threads = [threading.Thread(target=run, args=(rows,)) for rows in (4, 5, 6, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for got, right in found:
        close(got, right)


def test_a_process_that_has_the_backend_alone_computes_by_kernels():
    script = """
import torch
from torch._dynamo.utils import counters
from tilewright.api.dynamo_backend import tilewright
fast = torch.compile(lambda x: torch.softmax(x * 2, 0), backend=tilewright)
assert abs(fast(torch.ones(4)).sum().item() - 1) < 1e-6
print(dict(counters["tilewright"]))
"""
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == "{'graphs': 1, 'fallback_ops': 0}\n"


# ---- refusals ------------------------------------------------------------------------------


def test_what_we_lack_is_left_to_torch_or_named():
    def function(x):
        return torch.linalg.eigvalsh(x.t() @ x) + 1

    close(compiled(function)(CASE), function(CASE))
    assert counters["tilewright"]["fallback_ops"] > 0
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match=r"unsupported operation") as failed:
        compiled(function, options={"strict": True})(CASE)
    assert isinstance(failed.value.inner_exception, UnsupportedOp)
    assert "test_dynamo.py" in str(failed.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "max-autotune"}, "has no mode 'max-autotune'"),
        ({"options": {"speed": 9}}, "no option named 'speed'"),
        ({"options": {"strict": "very"}}, "option strict is 'very'"),
    ],
)
def test_other_modes_and_options_are_refused(given, message):
    with pytest.raises(BackendCompilerFailed, match=message) as failed:
        compiled(torch.sin, **given)(CASE)
    assert isinstance(failed.value.inner_exception, OptionError)


def test_torch_finds_the_backend_by_its_name(tmp_path, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    lines = [f"{k} = {v}" for k, v in project["entry-points"]["torch_dynamo_backends"].items()]
    info = tmp_path / "tilewright_of_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: tilewright-of-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    registry._discover_entrypoint_backends.cache_clear()
    registry._discover_entrypoint_backends()
    assert registry.lookup_backend("tilewright") is backend
