"""Modules that branch, loop, and have sizes that depend on data, compiled for the CPU, vs eager."""

import numpy as np
import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import tilewright
from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import DimError, UnsupportedOp
from tilewright.ir.steps import BindSize, Cond, LibraryCall, ScanLoop, While, walk

BATCH = torch.export.Dim("batch", min=1, max=64)


class Branches(torch.nn.Module):
    """A choice inside a choice, with a weight that is read inside and outside."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(40), torch.nn.Linear(40, 40)

    def forward(self, flag, x):
        def choose(x):
            return torch.cond(
                x.sum() > 0, lambda x: torch.softmax(x, -1), lambda x: self.norm(x) * 2, (x,)
            )

        x = torch.cond(flag, choose, lambda x: self.linear(x).relu(), (x * 2,))
        return x + 1, self.linear(x)


class Doubles(torch.nn.Module):
    """Two carried values change places each time, and a matrix that is not carried is read."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4) / 4)

    def forward(self, x, limit):
        def goes_on(i, x, y):
            return (i < limit) & (x.abs().max() < 1e3)

        def body(i, x, y):
            return i + 1, y @ self.weight, x + x

        return while_loop(goes_on, body, (torch.zeros((), dtype=torch.int64), x, x * 3))


class Recurrence(torch.nn.Module):
    """A gated recurrence over time: rows in, rows out, one state."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(6, 6)

    def forward(self, first, xs):
        def step(state, x):
            new = state * torch.sigmoid(self.gate(x)) + x
            return new, torch.tanh(new)

        return scan(step, first, xs, dim=0)


class Selects(torch.nn.Module):
    """Places and elements chosen by value, and what is computed of their number."""

    def forward(self, x):
        places = torch.nonzero(x > 0)
        kept = x[x > 0]
        rows = x[x.sum(1) > 0]
        count = torch.arange(kept.shape[0]).to(x.dtype)
        return places, kept * 2 + count, rows.sum(0), torch.masked_select(x, x[:, :1] < 0)


def compare(compiled, module, *args):
    with torch.no_grad():
        wanted = module(*args)
    got = compiled(*args)
    got, wanted = (x if isinstance(x, tuple) else (x,) for x in (got, wanted))
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def kinds(compiled) -> set[type]:
    return {type(step) for step in walk(compiled.program.steps)}


def test_cond(rng):
    torch.manual_seed(0)
    module = Branches().eval()
    example = (torch.tensor(True), torch.randn(2, 40))
    dynamic = {"flag": None, "x": {0: BATCH}}
    compiled = tilewright.compile(module, example, dynamic_shapes=dynamic, target="cpu")
    assert Cond in kinds(compiled)
    for flag in (True, False):
        for batch, sign in [(1, 1), (3, -1), (64, 1)]:
            x = torch.randn(batch, 40).abs() * sign
            compare(compiled, module, torch.tensor(flag), x)


def test_while_loop():
    torch.manual_seed(0)
    module = Doubles().eval()
    example = (torch.randn(3, 4), torch.tensor(2))
    dynamic = {"x": {0: BATCH}, "limit": None}
    compiled = tilewright.compile(module, example, dynamic_shapes=dynamic, target="cpu")
    assert While in kinds(compiled)
    for batch, limit in [(1, 0), (3, 1), (7, 2), (7, 9), (2, 1000)]:
        compare(compiled, module, torch.randn(batch, 4), torch.tensor(limit))


def test_scan():
    torch.manual_seed(0)
    module = Recurrence().eval()
    example = (torch.randn(6), torch.randn(5, 6))
    dynamic = {"first": None, "xs": {0: torch.export.Dim("time", min=1, max=100)}}
    compiled = tilewright.compile(module, example, dynamic_shapes=dynamic, target="cpu")
    assert ScanLoop in kinds(compiled)
    for time in (1, 5, 100):
        compare(compiled, module, torch.randn(6), torch.randn(time, 6))


def test_sizes_that_depend_on_data():
    module = Selects()
    compiled = tilewright.compile(
        module, (torch.randn(5, 4),), dynamic_shapes={"x": {0: BATCH}}, target="cpu"
    )
    assert LibraryCall in kinds(compiled)
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    for case in (x, x[:1], x.abs(), -x.abs(), torch.zeros(3, 4), torch.full((1, 4), float("nan"))):
        compare(compiled, module, case)


def test_what_is_not_supported_in_a_branch_is_in_the_table():
    class Odd(torch.nn.Module):
        def forward(self, x):
            x = torch.cond(x.sum() > 0, lambda x: torch.igamma(x, x), lambda x: x + 1, (x,))
            return torch.special.airy_ai(x)

    with pytest.raises(UnsupportedOp, match=r"2 unsupp(.|\n)*aten.igamma.*test_control.py:\d+"):
        import_module(Odd(), (torch.randn(3, 3),))


class Counts(torch.nn.Module):
    """A size that is the value of a tensor, used as a number too."""

    def forward(self, x, counts):
        count = counts.max().item()
        torch._check(count >= 0)
        torch._check(count <= 6)
        return torch.arange(count) * 2, x * count, x[:count], torch.zeros(count, 2) + x[:2]


def test_a_size_that_is_the_value_of_a_tensor():
    module = Counts()
    compiled = tilewright.compile(module, (torch.randn(6), torch.tensor([1, 3])), target="cpu")
    assert BindSize in kinds(compiled)
    for counts in ([1, 3], [0, 0], [6, 2]):
        compare(compiled, module, torch.randn(6), torch.tensor(counts))
    for counts, value in ([7, 0], 7), ([-1, -2], -1):
        with pytest.raises(DimError, match=rf"is {value}, its range is \[0, 6\]"):
            compiled(torch.randn(6), torch.tensor(counts))


def test_faults_are_those_of_the_branch_that_runs():
    class Looks(torch.nn.Module):
        def forward(self, flag, x, at):
            return torch.cond(flag, lambda x, at: x[at], lambda x, at: x[:2] * 1, (x, at))

    compiled = tilewright.compile(
        Looks(), (torch.tensor(True), torch.ones(5), torch.tensor([1, 2])), target="cpu"
    )
    x, at = torch.arange(5.0), torch.tensor([9, -1])
    assert compiled(torch.tensor(False), x, at).tolist() == [0, 1]
    with pytest.raises(IndexError, match=r"index 9 is out of range(.|\n)*in test_control.py:\d+"):
        compiled(torch.tensor(True), x, at)
    assert compiled(torch.tensor(True), x, at.clamp(max=3)).tolist() == [3, 4]


def test_a_number_of_places_that_is_assumed_is_refused():
    class Fits(torch.nn.Module):
        def forward(self, x):
            return torch.full((4,), 2.0) + x[x > -100]

    with pytest.raises(UnsupportedOp, match="assumes how many places there are"):
        import_module(Fits(), (torch.randn(4),))


def test_a_declared_bound_is_held():
    class Bounded(torch.nn.Module):
        def forward(self, x):
            places = torch.nonzero(x)
            torch._check(places.shape[0] <= 2)
            return places

    compiled = tilewright.compile(Bounded(), (torch.tensor([1.0, 0, 0]),), target="cpu")
    assert compiled(torch.tensor([0.0, 3, 4])).tolist() == [[1], [2]]
    with pytest.raises(DimError, match=r"is 3, its range is \[0, 2\]"):
        compiled(torch.ones(3))


class Places(torch.nn.Module):
    """Other ways to ask where, what is computed of what was found, and a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        rows, columns = torch.where(x > 0)
        some = x[:, x.sum(0) > 0]
        pairs = torch.argwhere(x < 0)
        self.total.add_(x.sum(0))
        chosen = torch.cond(
            self.total.sum() > 0, lambda x, t: x + t, lambda x, t: x - t, (x, self.total)
        )
        return rows * columns, some, {"pairs": pairs, "count": pairs.shape[0]}, chosen


def test_every_way_to_ask_where_at_sizes_that_change(tmp_path):
    torch.manual_seed(0)
    module, eager = Places(), Places()
    compiled = tilewright.compile(module, target="cpu")
    calls = [torch.randn(n, 4) for n in (5, 7, 0)]
    leaves = torch.utils._pytree.tree_leaves
    for x in calls:
        with torch.no_grad():
            wanted = leaves(eager(x))
        for got, want in zip(leaves(compiled(x)), wanted, strict=True):
            assert type(got) is type(want)
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    compiled.save(tmp_path / "places")
    loaded = tilewright.load(tmp_path / "places")
    for got, want in zip(leaves(loaded(calls[1])), leaves(compiled(calls[1])), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want))


def test_repeated_runs_share_nothing():
    """Results of one run are the caller's: the next, of another size, leaves them alone."""
    compiled = tilewright.compile(Selects(), (torch.randn(5, 4),), target="cpu")
    x = torch.arange(20.0).reshape(5, 4) - 9
    first = compiled(x)
    kept = [value.clone() for value in first]
    compiled(-x)
    for value, before in zip(first, kept):
        np.testing.assert_array_equal(value.numpy(), before.numpy())


@pytest.mark.parametrize("shape", [(0, 3), (0,)])
def test_what_is_chosen_of_nothing(shape):
    """Torch counts it all the same; we know."""

    class Chosen(torch.nn.Module):
        def forward(self, x):
            return torch.masked_select(x, x > 0) * 2, torch.nonzero(x), x[x > 0] + 1

    x = torch.zeros(shape)
    torch.testing.assert_close(tilewright.compile(Chosen(), (x,), target="cpu")(x), Chosen()(x))
