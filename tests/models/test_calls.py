"""Calls of a compiled module: what goes in, what comes out, and what changes from call to call."""

import dataclasses
from collections import defaultdict, namedtuple

import pytest
import torch
from torch import nn
from torch.export import Dim

import tilewright
from tilewright.api import compiled_variant

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# ---- results -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Found:
    best: torch.Tensor
    rest: list
    note: str | None = None


class Named(dict):
    """A dict that torch knows nothing of."""


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Registered:
    a: torch.Tensor
    b: torch.Tensor | None = None


torch.export.register_dataclass(Registered, serialized_type_name="tests.Registered")


def test_results_keep_their_containers():
    def forward(x):
        found = Found(x + 1, [x.t(), x, x], "no tensor")
        return Named(z=found, a=Pair(x.shape, (None, 2.5, True, torch.float16)), n=x.shape[0])

    module = Function(forward)
    got, right = tilewright.compile(module, (X,), target="cpu")(X), module(X)
    assert type(got) is Named
    assert list(got) == ["z", "a", "n"]
    assert type(got["z"]) is Found
    assert got["z"].note == "no tensor"
    assert got["a"] == right["a"]
    assert type(got["a"]) is Pair
    assert type(got["a"].left) is torch.Size
    assert (got["n"], type(got["n"])) == (3, int)
    torch.testing.assert_close(got["z"].best, right["z"].best)
    torch.testing.assert_close(got["z"].rest, right["z"].rest)
    got["z"].rest[1].zero_()  # a result of its own: neither the input nor the next call sees it
    assert X.abs().sum() > 0


def test_hooks_of_the_module_change_its_result():
    module = nn.Linear(4, 2)
    module.register_forward_hook(lambda _, args, y: Found(y * args[0].sum(), []))
    got = tilewright.compile(module, (X,), target="cpu")(X)
    with torch.no_grad():
        torch.testing.assert_close(got.best, module(X).best)


def test_a_result_that_is_no_container_is_refused():
    class Box:
        pass

    with pytest.raises(tilewright.UnsupportedModel, match=r"returns a Box\n  at its result\[1\]"):
        tilewright.compile(Function(lambda x: (x, Box())), (X,), target="cpu")


# ---- what changes from call to call --------------------------------------------------------

EMPTY = {
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(0)),
    "softmax": lambda x: (x.softmax(0), x.softmax(1), x.exp()),
    "product": lambda x: (x @ x.t(), x.t() @ x, torch.cat([x, x]), x[:, None] * x[None]),
    "shapes": lambda x: (x.reshape(-1), x.t().contiguous(), x.flatten().view(-1, 2), x.cumsum(0)),
    "attention": lambda x: attended(x.t().reshape(2, 3, x.shape[0], 1)),
}


def attended(q):
    """Heads merged behind attention, as every model does it."""
    seen = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return seen.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1 if q.shape[2] else q.shape[1])


def test_empty_batches_have_a_program_of_their_own():
    parts = EMPTY.values()
    module = Function(lambda x: [part(x) for part in parts])
    compiled = tilewright.compile(module, target="cpu")
    for rows in (4, 6, 0, 9, 1, 0):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), module(x), equal_nan=True, rtol=1e-4, atol=1e-5)
    assert len(compiled.variants) == 3


def test_empty_axes_within_declared_ranges():
    dims = {"x": {0: Dim("rows", min=0, max=9), 1: Dim("columns", min=1, max=9)}}
    module = Function(lambda x: (x * 2, x.sum(0)))
    compiled = tilewright.compile(module, (torch.randn(0, 3),), dynamic_shapes=dims, target="cpu")
    for shape in ((0, 3), (2, 5), (0, 7), (9, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), module(x))
    assert len(compiled.variants) == 2
    for shape, says in (((2, 0), r"columns.* is 0, its range is \[1, 9\]"), ((10, 2), "rows.*10")):
        with pytest.raises(tilewright.DimError, match=says):
            compiled(torch.randn(shape))


def test_what_eager_refuses_of_an_empty_batch_is_refused_for_it_alone():
    compiled = tilewright.compile(Function(lambda x: x.amax(0)), target="cpu")
    for rows in (2, 3):
        torch.testing.assert_close(compiled(X[:rows]), X[:rows].amax(0))
    with pytest.raises(tilewright.ShapeError, match="does not take these inputs"):
        compiled(X[:0])
    torch.testing.assert_close(compiled(X[:1]), X[0])


def test_sizes_change_inside_of_any_container():
    """Also of one that torch has by name only, or that is the user's."""

    class Sums(nn.Module):
        def forward(self, x, pair, ordered):
            return x.a * 2 + pair.left, ordered["second"].sum(0)

    compiled = tilewright.compile(Sums(), target="cpu")
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        ordered = defaultdict(list, first=x, second=x + 1)
        got = compiled(Registered(x, x + 1), Pair(x, x), ordered)
        torch.testing.assert_close(got, (x * 3, (x + 1).sum(0)))
    assert len(compiled.variants) == 2


def test_sizes_that_no_program_can_leave_open_have_one_each():
    """Two that must be equal and are not known to be; one that says how many results there are."""

    class Puts(nn.Module):
        def forward(self, x, index, **values):
            return x.index_put((index,), values["new"]), torch.cat(x[: len(index)].chunk(3)[1:])

    compiled = tilewright.compile(Puts(), target="cpu")
    for count in (6, 4, 6, 5):
        given = X.repeat(3, 1), torch.randperm(9)[:count]
        torch.testing.assert_close(compiled(*given, new=X[:1] * 0), Puts()(*given, new=X[:1] * 0))
        new = torch.randn(count, 4)
        torch.testing.assert_close(compiled(*given, new=new), Puts()(*given, new=new))


def test_attention_over_keys_and_values_that_grow():
    module = Attends()
    compiled = tilewright.compile(module, target="cpu")
    for count in (3, 5, 9, 1):
        q, k, v = (torch.randn(1, 2, n, 4) for n in (2, count, count))
        torch.testing.assert_close(compiled(q, k, v), module(q, k, v))
    assert len(compiled.variants) == 2


class Attends(nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, value=v)


def test_constants_that_change_drop_the_oldest_program_with_one_warning(monkeypatch):
    class Power(nn.Module):
        def forward(self, x, power=1.0, name="a"):
            return x * power + len(name)

    monkeypatch.setattr(compiled_variant, "MAX_VARIANTS", 2)
    compiled = tilewright.compile(Power(), target="cpu")
    for power in (0.5, 2.5):
        torch.testing.assert_close(compiled(X, power), X * power + 1)
    with pytest.warns(UserWarning, match=r"Power was compiled more than 2 times.*'abc'"):
        torch.testing.assert_close(compiled(X, 7.5, name="abc"), X * 7.5 + 3)
    torch.testing.assert_close(compiled(X, 0.5), X * 0.5 + 1)  # again, and without a word
    assert len(compiled.variants) == 2


# ---- inputs --------------------------------------------------------------------------------

ODD = {
    "a subclass of torch.Tensor": lambda: X.as_subclass(type("Own", (torch.Tensor,), {})),
    "on the meta device": lambda: torch.empty(3, 4, device="meta"),
    "torch.sparse_csr": lambda: torch.eye(4)[:3].to_sparse_csr(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "requires grad": lambda: X.clone().requires_grad_(),
}


@pytest.fixture(scope="module")
def double():
    return tilewright.compile(Function(lambda x: x * 2), (X,), target="cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("says", ODD)
def test_tensors_that_are_not_plain_are_named(double, says):
    x = ODD[says]()
    for compiled in (double, tilewright.compile(nn.ReLU(), target="cpu")):  # before any tracing
        with pytest.raises(tilewright.TilewrightError, match=says):
            compiled(x)


def test_a_tensor_inside_of_an_argument_is_named_by_its_place():
    compiled = tilewright.compile(Function(lambda x: x["a"] * 2), ({"a": X, "b": X},), target="cpu")
    for says, make in ODD.items():
        if "quantized" not in says:  # torch warns of making one
            with pytest.raises(tilewright.TilewrightError, match=rf"x\['b'\] is .*{says}"):
                compiled({"a": X, "b": make()})  # which nothing reads
    torch.testing.assert_close(compiled({"a": X, "b": X}), X * 2)


def test_arrays_alone_need_no_taking_apart(double, monkeypatch):
    """The usual call costs little more than the kernels: torch's pytree would double it."""
    for name in ("tree_flatten", "tree_flatten_with_path", "tree_map", "tree_unflatten"):
        monkeypatch.delattr(f"torch.utils._pytree.{name}")
    torch.testing.assert_close(double(X), X * 2)
    torch.testing.assert_close(double(x=X.numpy()), X.numpy() * 2)


def test_transforms_and_autocast_are_refused(double):
    for transform in (torch.vmap(double), torch.func.grad(lambda x: double(x).sum())):
        with pytest.raises(tilewright.ShapeError, match=r"transform of torch\.func"):
            transform(X)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(tilewright.UnsupportedModel, match="autocast is on"),
    ):
        double(X)


def test_autocast_and_vmap_in_the_module():
    def forward(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = x @ x.t()
            with torch.autocast("cpu", enabled=False):
                high = x @ x.t()
        rows = torch.vmap(lambda a, b: a * b.sum() - a.max(), in_dims=(0, 1))(x, x.t())
        return low, high, torch.vmap(torch.vmap(torch.sin))(x), rows

    compiled = tilewright.compile(Function(forward), (X,), target="cpu")
    for x in (X, X[:2]):
        for got, right in zip(compiled(x), forward(x), strict=True):
            is_low = right.dtype is torch.bfloat16
            torch.testing.assert_close(got, right, **(dict(rtol=0.02, atol=0.02) if is_low else {}))


def test_strides_and_offsets_of_inputs_do_not_matter(double):
    wide = torch.randn(8, 9)
    views = (wide[2:5, 3:7], wide.t()[:3, 1:5], wide[::3, ::2][:, :4], wide[:1, :4].expand(3, 4))
    for x in (*views, X.requires_grad_(False)):
        torch.testing.assert_close(double(x), x * 2)


def test_modules_that_cannot_be_read_are_named():
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(tilewright.UnsupportedModel, match=r"not initialized(.|\n)*0.weight"):
        tilewright.compile(lazy, (X,), target="cpu")
    assert nn.parameter.is_lazy(lazy[0].weight)
    with pytest.raises(tilewright.UnsupportedModel, match="on the meta device: bias"):
        tilewright.compile(NoBias(), (X,), target="cpu")
    with pytest.raises(tilewright.UnsupportedModel, match="neither a tensor nor a container"):
        tilewright.compile(Function(lambda x: x.best), (Found(X, []),), target="cpu")
    own = type("Own", (nn.Linear,), {"__call__": lambda self, x: self.forward(x) + 1})
    with pytest.raises(tilewright.UnsupportedModel, match="replaces __call__"):
        tilewright.compile(own(4, 2), target="cpu")


class NoBias(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.bias = nn.Parameter(self.bias.to("meta"))
