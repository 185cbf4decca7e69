"""Importing modules at dynamic sizes: which sizes hold, are equal, or are refused."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import fake_impls

from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import DimError, UnsupportedModel, UnsupportedOp

from .test_torch_export import Branches, close, run

Dim = torch.export.Dim


def test_a_condition_that_no_range_expresses_is_refused_with_its_text():
    class Odd(nn.Module):
        def forward(self, x, y):
            return x * 2 if x.shape[0] * 3 > y.shape[0] * 2 else x

    shapes = ({0: Dim("n")}, {0: Dim("m")})
    with pytest.raises(DimError, match=r"takes other paths at other sizes(.|\n)*3\*n > 2\*m"):
        import_module(Odd(), (torch.randn(6, 2), torch.randn(3, 2)), dynamic_shapes=shapes)


def test_sizes_that_the_module_makes_equal():
    class Add(nn.Module):
        def forward(self, x, y):
            return x + y

    pair = (torch.randn(4, 2), torch.randn(4, 2))
    same = import_module(Add(), pair, dynamic_shapes=({0: Dim("n")}, {0: Dim("n")}))
    assert list(same.graph.symbols) == ["n"]
    with pytest.raises(DimError, match="declared apart must be equal"):
        import_module(Add(), pair, dynamic_shapes=({0: Dim("n")}, {0: Dim("m")}))


def test_derived_dims():
    class Half(nn.Module):
        def forward(self, x, y):
            return x + y[::2]

    n = Dim("n", max=50)
    imported = import_module(
        Half(), (torch.randn(4), torch.randn(8)), dynamic_shapes=({0: n}, {0: 2 * n})
    )
    assert [str(v.shape[0]) for v in imported.graph.inputs] == ["n", "2*n"]
    assert imported.graph.symbols["n"].hi == 50
    x, y = torch.randn(1), torch.randn(2)
    np.testing.assert_allclose(run(imported, x, y)[0], x + y[::2], rtol=1e-6)


def test_a_fixed_size_where_a_dynamic_one_was_asked_for():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(4, 6)

    with pytest.raises(DimError, match="fixed size where a dynamic one was asked for"):
        import_module(Fixed(), (torch.randn(6, 4),), dynamic_shapes=({0: Dim("n")},))


def test_a_size_that_must_be_a_multiple():
    """n becomes 3 * n_by_3, so that a reshape by the quotient is exact."""

    class Triples(nn.Module):
        def forward(self, x):
            n = x.shape[0]
            return x.view(n // 3, 3, 2).sum(1) if n % 3 == 0 else x

    module, x = Triples(), torch.randn(6, 2)
    imported = import_module(module, (x,), dynamic_shapes=({0: Dim("n", max=20)},))
    (symbol,) = imported.graph.symbols.values()
    assert (symbol.name, symbol.lo, symbol.hi, symbol.hint) == ("n_by_3", 1, 6, 2)
    assert [str(d) for d in imported.graph.inputs[0].shape] == ["3*n_by_3", "2"]
    assert imported.notes == ("n is a multiple of 3: it is 3*n_by_3",)
    x = torch.randn(12, 2)
    np.testing.assert_allclose(run(imported, x)[0], module(x), rtol=1e-5)
    with pytest.raises(DimError, match="no whole n_by_3 fits"):
        run(imported, torch.randn(7, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:5],
        lambda x: x[2:],
        lambda x: x[-3:],
        lambda x: x[:-2],
        lambda x: x[1:4],
        lambda x: x[-4:-1],
        lambda x: x[3:2],
        lambda x: x[::2],
        lambda x: x[1::3],
        lambda x: x[: x.shape[0] // 2],
        lambda x: x[x.shape[0] // 2 :],
        lambda x: x[: x.shape[0] - 1],
    ],
)
def test_slices_of_an_axis_of_unknown_size(function):
    class Slice(nn.Module):
        def forward(self, x):
            return function(x)

    module = Slice()
    imported = import_module(module, (torch.randn(9, 2),), dynamic_shapes=({0: Dim("n")},))
    assert imported.graph.symbols["n"].lo == 1
    for n in (1, 2, 3, 4, 5, 8):
        x = torch.randn(n, 2)
        np.testing.assert_array_equal(run(imported, x)[0], function(x).double())


@pytest.mark.parametrize("cut", [lambda x: x.split(3)[0], lambda x: x.chunk(3)[0]])
def test_a_number_of_parts_that_depends_on_the_size_is_refused(cut):
    class Cut(nn.Module):
        def forward(self, x):
            return cut(x)

    with pytest.raises(UnsupportedOp, match="how many depends on the size"):
        import_module(Cut(), (torch.randn(8, 2),), dynamic_shapes=({0: Dim("n")},))


def test_parts_whose_number_is_certain():
    class Halves(nn.Module):
        def forward(self, x):
            first, second = x.repeat(2, 1).chunk(2)
            return first - second, x.split([1, x.shape[0] - 1])[1]

    module = Halves()
    imported = import_module(module, (torch.randn(8, 2),), dynamic_shapes=({0: Dim("n")},))
    for n in (1, 5):
        x = torch.randn(n, 2)
        for ours, theirs in zip(run(imported, x)[0], module(x), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_truth_value_of_sizes_as_a_result_is_refused():
    class Truth(nn.Module):
        def forward(self, x):
            return x + 1, x.shape[0] > 3

    with pytest.raises(UnsupportedModel, match="truth value that depends on sizes"):
        import_module(Truth(), (torch.randn(8, 2),), dynamic_shapes=({0: Dim("n")},))


@pytest.mark.parametrize("hint", [Dim.AUTO, Dim.DYNAMIC, Dim("n")])
@pytest.mark.parametrize("size", [0, 1])
def test_examples_of_size_zero_and_one(hint, size):
    """A size of 1 in the example is not taken for a fixed one."""
    torch.manual_seed(0)
    module = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).double().eval()
    x = torch.randn(size, 1, 16).double()
    tokens = Dim("t", max=3) if isinstance(hint, Dim) else hint
    imported = import_module(module, (x,), dynamic_shapes=({0: hint, 1: tokens},))
    assert len(imported.graph.symbols) == 2
    for shape in ((1, 1), (2, 3)):
        x = torch.randn(*shape, 16).double()
        close(run(imported, x)[0], module(x))


def test_a_branch_on_one_size_makes_it_fixed():
    with pytest.raises(DimError, match="fixed size where a dynamic one was asked for"):
        import_module(
            Branches(lambda n: n == 6), (torch.randn(6, 2),), dynamic_shapes=({0: Dim("n")},)
        )


def test_wrong_dynamic_shapes():
    class Identity(nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.randn(3, 2)
    with pytest.raises(DimError, match="names 'y', which is no argument"):
        import_module(Identity(), (x,), dynamic_shapes={"y": {0: Dim("n")}})
    with pytest.raises(DimError, match="has 2 entries, there are 1 arguments"):
        import_module(Identity(), (x,), dynamic_shapes=({0: Dim("n")}, None))
    with pytest.raises(DimError, match="names axis 5"):
        import_module(Identity(), (x,), dynamic_shapes=({5: Dim("n")},))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"pair": {0: Dim("n")}}, "at pair\\n.*the argument is a tuple of 2"),
        ({"pair": (None,)}, "at pair\\n.*has 1 entries, the argument is a tuple of 2"),
        ({"named": ({0: Dim("n")},)}, "at named\\n.*the argument a dict of 'y'"),
        ({"named": {"z": {0: Dim("n")}}}, "at named\\n.*the argument a dict of 'y'"),
    ],
)
def test_dynamic_shapes_in_other_containers_than_the_arguments(shapes, says):
    """What is declared is never dropped: the axes would be static without a word."""

    class Sum(nn.Module):
        def forward(self, pair, named):
            return pair[0] + pair[1] + named["y"]

    x = torch.randn(3, 2)
    with pytest.raises(DimError, match=says):
        import_module(
            Sum(), ((x, x), {"y": x}), dynamic_shapes={"pair": None, "named": None} | shapes
        )


def test_dynamic_axes_of_a_module_that_takes_any_keyword_are_refused():
    class Sum(nn.Module):
        def forward(self, x, **others):
            return x + others["y"]

    x = torch.randn(3, 2)
    import_module(Sum(), (x,), {"y": x}, dynamic_shapes={"x": None})
    with pytest.raises(DimError, match=r"has \*\*others, given 'y'"):
        import_module(Sum(), (x,), {"y": x}, dynamic_shapes={"x": {0: Dim("n")}})


def test_squeeze_of_an_axis_that_may_be_one_is_refused():
    class Squeeze(nn.Module):
        def forward(self, x):
            return x.squeeze(0)

    with pytest.raises((UnsupportedOp, DimError), match=r"which may be 1 or not|fixed size"):
        import_module(Squeeze(), (torch.randn(3, 2),), dynamic_shapes=({0: Dim("n")},))


@pytest.mark.parametrize(("start", "is_symbol"), [(0, False), (4, False), (0, True)])
def test_a_table_says_how_long_inputs_may_be(start, is_symbol, monkeypatch):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Buffer(torch.randn(19, 3))

        def forward(self, x):
            return x + self.table[start : x.shape[0] + start]

    if is_symbol:
        # as torch 2.11, which takes such a slice's size for a symbol of its own, where 2.13 has min
        def index_of(size, index):
            return index if isinstance(index, int) else None

        monkeypatch.setattr(fake_impls, "_compute_slice_index", index_of)
    module = Table()
    imported = import_module(module, (torch.randn(7, 3),), dynamic_shapes=({0: Dim("n")},))
    longest = imported.graph.symbols["n"].hi
    assert longest == 19 - start
    for n in (1, 6, longest):
        x = torch.randn(n, 3)
        np.testing.assert_allclose(run(imported, x)[0], module(x), rtol=1e-6)


def test_a_range_holds_for_what_is_equal():
    class Checked(nn.Module):
        def forward(self, x, count):
            size = count.item()
            torch._check(size >= 3)
            torch._check(size <= 11)
            return x + torch.ones(size, 1)

    args = (torch.randn(5, 2), torch.tensor(5))
    imported = import_module(Checked(), args, dynamic_shapes=({0: Dim("n")}, None))
    assert (imported.graph.symbols["n"].lo, imported.graph.symbols["n"].hi) == (3, 11)
