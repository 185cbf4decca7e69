"""What is done to a module after `compile`, and to the compiled module itself."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

import tilewright


class Scaled(nn.Module):
    """A packed matrix, a vector that is read as it lies, a number, a buffer, a list of tensors."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, 32), nn.LayerNorm(32)
        self.register_buffer("shift", torch.randn(32))
        self.extra, self.scale = [torch.randn(32)], 2.0

    def forward(self, x):
        return self.norm(self.linear(x)) * self.scale + self.shift + self.extra[0]


CHANGES = {
    "load_state_dict": lambda m: m.load_state_dict(
        {name: torch.randn_like(value) for name, value in m.state_dict().items()}
    ),
    "data": lambda m: setattr(m.norm.weight, "data", torch.randn(32)),
    "in place, uncounted": lambda m: m.norm.bias.data.add_(1.0),
    "through NumPy": lambda m: m.shift.numpy().fill(7.0),
    "replaced": lambda m: setattr(m, "linear", nn.Linear(m.linear.in_features, 32)),
    "a tensor in a list": lambda m: m.extra[0].zero_(),
    "an attribute": lambda m: setattr(m, "scale", 3.0),
    "a hook": lambda m: m.register_forward_hook(lambda *_: None),
    "dtype": lambda m: m.double(),
}


@pytest.fixture(scope="module")
def scaled():
    torch.manual_seed(0)
    module = Scaled(6).eval()
    return (
        copy.deepcopy(module),
        module,
        tilewright.compile(module, (torch.ones(3, 6),), target="cpu"),
    )


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_compiled_module_keeps_the_values_it_read(scaled, change):
    before, module, compiled = scaled
    CHANGES[change](module)
    x = torch.randn(3, 6)
    torch.testing.assert_close(compiled(x), before(x), rtol=1e-5, atol=1e-5)


def test_a_new_size_never_mixes_old_values_and_new():
    module = Scaled(5).eval()
    compiled = tilewright.compile(module, target="cpu")
    compiled(torch.ones(2, 5))
    module.scale = 5.0  # no tensor: the next program has the old one
    with torch.no_grad():
        right = module(torch.ones(4, 5)) - module.shift - module.extra[0]
        got = compiled(torch.ones(4, 5)) - module.shift - module.extra[0]
    torch.testing.assert_close(got * 2.5, right)
    module.norm.weight.data.mul_(3.0)
    with pytest.raises(tilewright.UnsupportedModel, match=r"have changed(.|\n)*norm.weight"):
        compiled(torch.ones(2, 3, 5))
    assert compiled(torch.ones(7, 5)).shape == (7, 32)  # the programs there are go on


def test_copies_are_refused_with_a_way_out(scaled):
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(tilewright.UnsupportedModel, match="save it, and load it"):
            attempt(scaled[2])


def test_close_gives_back_and_says_so():
    module = nn.Linear(3, 2)
    with tilewright.compile(module, (torch.ones(1, 3),), target="cpu") as compiled:
        assert "Linear for" in repr(compiled)
        assert compiled(torch.ones(1, 3)).shape == (1, 2)
    assert "closed" in repr(compiled)
    for use in (lambda: compiled(torch.ones(1, 3)), lambda: compiled.program):
        with pytest.raises(tilewright.OptionError, match="was closed"):
            use()


@pytest.mark.parametrize("module", [nn.Dropout(0.2), nn.GRU(6, 5, 2, dropout=0.3), nn.RReLU()])
def test_train_mode_that_matters_is_refused(module):
    with pytest.raises(tilewright.TilewrightError, match=r"call eval\(\) on"):
        tilewright.compile(module, (torch.randn(4, 6),), target="cpu")


def test_a_norm_in_train_mode_takes_the_statistics_of_the_batch():
    module, x = nn.BatchNorm1d(6), torch.randn(4, 6)
    compiled = tilewright.compile(module, (x,), target="cpu")
    torch.testing.assert_close(compiled(x), module(x).detach())


def test_train_mode_that_does_not_matter_and_code_that_asks_for_it():
    class Mode(nn.Module):
        def forward(self, x):
            return x + (1 if self.training else 2)

    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), Mode())
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(tilewright.compile(module, (x,), target="cpu")(x), module(x))


def test_other_threads_use_the_module_while_it_is_compiled():
    module = nn.Sequential(*(nn.Sequential(nn.Linear(9, 9), nn.Tanh()) for _ in range(6)))
    x, stop, wrong = torch.randn(5, 9), threading.Event(), []
    with torch.no_grad():
        right = module(x)

    def use():
        while not stop.is_set():
            with torch.no_grad():
                if not torch.equal(module(x), right):
                    wrong.append("other values")

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        got = [tilewright.compile(module, (x,), target="cpu")(x) for _ in range(2)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    torch.testing.assert_close(got[0], right)
