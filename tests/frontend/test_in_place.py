"""Writes in place: seen through views and other names, or by nobody, when they are plain."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tilewright.frontend.torch_export import import_module
from tilewright.frontend.trace import export, needs_functions
from tilewright.ir.evaluate import evaluate

SIDE = 3
FRESH = {
    "relu": lambda x, y: x.relu(),
    "add": torch.add,
    "cat": lambda x, y: torch.cat([x, y])[1 : SIDE + 1],
    "clone": lambda x, y: x.clone(),
    "zeros": lambda x, y: torch.zeros(SIDE, SIDE, dtype=x.dtype),
    "hardshrink": lambda x, y: F.hardshrink(x),  # taken apart where it stands
}
MAYBE_VIEWS = {
    "t": lambda x, y: x.t(),
    "contiguous": lambda x, y: x.contiguous(),
    "dropout": lambda x, y: F.dropout(x, 0.5, training=False),
    "reshape": lambda x, y: x.reshape(-1).reshape(SIDE, SIDE),
    "to": lambda x, y: x.to(y.dtype),
    "split": lambda x, y: torch.stack([*x.split(1)], 1).squeeze(0).view(SIDE, SIDE),
}
WRITES = {
    "add_": lambda x, y: x.add_(y),
    "relu_": lambda x, y: x.relu_(),
    "mul_": lambda x, y: x.mul_(2),
    "copy_": lambda x, y: x.copy_(y),
    "fill_": lambda x, y: x.fill_(4),
    "hardshrink_": lambda x, y: F.threshold_(x, 0.5, -1),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 5),
    "row": lambda x, y: x[1].sub_(y[0]),
    "item": lambda x, y: x.__setitem__((slice(None), 2), 7),
}
STEPS = FRESH | MAYBE_VIEWS | WRITES
steps = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99)),
    min_size=3,
    max_size=9,
)


class Program(nn.Module):
    """Steps over what the earlier ones gave; all of it, some of it, or the last is returned."""

    def __init__(self, steps, returned):
        super().__init__()
        self.steps, self.returned = steps, returned
        self.register_buffer("held", torch.eye(SIDE, dtype=torch.float64))

    def forward(self, x):
        values = [x, self.held * 2]
        for name, i, j in self.steps:
            made = STEPS[name](values[i % len(values)], values[j % len(values)])
            if made is not None and made.shape == x.shape:
                values.append(made)
        return values[-self.returned :]


@settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps, st.integers(1, 3))
def test_programs_of_writes_equal_eager(steps, returned):
    module = Program(steps, returned)
    example = torch.arange(-4.0, 5.0, dtype=torch.float64).reshape(SIDE, SIDE) / 2
    imported = import_module(module, (example.clone(),))
    theirs = example.clone()
    expected = module(theirs)
    inputs = {"x": example.numpy()}
    outputs, _ = evaluate(imported.graph, inputs, imported.weights, imported.states)
    for got, want in zip(imported.signature.restore(outputs), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want)
    for name, place in imported.signature.written:
        assert name == "x"
        torch.testing.assert_close(torch.as_tensor(outputs[place]), theirs)
    if not imported.signature.written:
        assert torch.equal(theirs, example)


def _branches(x):
    return F.relu(F.dropout(x * 2, training=False), inplace=True)


def _residual(x):
    y = (x * 2).relu_()
    y += x
    return y.mul_(3), x


def _wider(x):
    return (x * 2).add_(torch.ones(2, dtype=torch.float64))


UNSEEN = {
    "after a product": _branches,
    "a chain": _residual,
    "of a flag": lambda x: x.gt(0).logical_not_(),
}
SEEN = {
    "of an argument": lambda x: x.relu_(),
    "through a view": lambda x: ((y := x * 2)[0].zero_(), y)[1],
    "by a view": lambda x: (v := (y := x * 2).t(), y.add_(1), v)[2],
    "in another dtype": _wider,
}  # fmt: skip


def _module(function):
    return type("Case", (nn.Module,), {"forward": lambda self, x: function(x)})().eval()


@pytest.mark.parametrize("function", UNSEEN.values(), ids=UNSEEN)
def test_what_nobody_sees_is_not_traced_again(function):
    assert not needs_functions(export(_module(function), (torch.ones(2, 2),)).program)


@pytest.mark.parametrize("function", SEEN.values(), ids=SEEN)
def test_what_is_seen_is(function):
    program = export(_module(function), (torch.ones(2, 2),)).program
    assert needs_functions(program)


def test_a_program_without_memory_is_traced_again():
    """What torch read from a file does not say which values lie in the same memory."""
    program = export(_module(_residual), (torch.ones(2, 2),)).program
    for node in program.graph.nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            with node.meta["val"].fake_mode:
                node.meta["val"] = node.meta["val"].clone()
    assert needs_functions(program)


def test_a_write_into_what_dropout_returns_reaches_its_input():
    def written(x):
        F.dropout(x, 0.5, False).add_(1.0)
        return x * 2

    assert needs_functions(export(_module(written), (torch.ones(2, 2),)).program)
