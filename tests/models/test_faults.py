"""Data without a result: indices outside an axis, integers divided by zero; as eager has them."""

import numpy as np
import pytest
import torch
from torch import nn

import tilewright
from tilewright import passes
from tilewright.codegen.build import build
from tilewright.ir.builder import Builder
from tilewright.ir.errors import DivisionByZero, IndexOutOfRange
from tilewright.ir.evaluate import evaluate
from tilewright.ir.target import cpu
from tilewright.ir.types import i64
from tilewright.passes.pipelines import dense
from tilewright.runtime.cpu import CpuDevice
from tilewright.runtime.executable import Executable

X = torch.arange(66.0).reshape(6, 11)


class Case(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


class Table(nn.Module):
    """An embedding that the outer module calls `words`."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, i):
        return self.head(self.words(i))


def of_axis(function, size, *, wraps):
    """A function of an index for an axis of `size`, eager's good and bad ones."""
    good = [0, size - 1] + [-1, -size] * wraps
    bad = [size, size + 1000, 2**40, -(2**63), -size - 1] + [-1] * (not wraps)
    return function, good, bad


LOOKUPS = {
    "embedding in a product": of_axis(Table(), 6, wraps=False),
    "index_select": of_axis(Case(lambda i: torch.index_select(X, 1, i)), 11, wraps=False),
    "gather": of_axis(Case(lambda i: X[:1].gather(1, i[None])), 11, wraps=False),
    "x[i]": of_axis(Case(lambda i: X[i]), 6, wraps=True),
    "x[:, i] summed": of_axis(Case(lambda i: X[:, i].sum(0)), 11, wraps=True),
    "x[0, i]": of_axis(Case(lambda i: X[torch.zeros_like(i), i]), 11, wraps=True),
    "take": of_axis(Case(lambda i: torch.take(X, i)), 66, wraps=True),
    "numbers made by arange": of_axis(
        Case(lambda i: torch.arange(5, 40, 3)[i] * 2), 12, wraps=True
    ),
    "of a concat": of_axis(Case(lambda i: torch.cat([X, X + 1])[i]), 12, wraps=True),
    "of padding": of_axis(Case(lambda i: nn.functional.pad(X, (0, 0, 1, 2))[i]), 9, wraps=True),
    "under a softmax": of_axis(Case(lambda i: X[i].softmax(-1)), 6, wraps=True),
    "scatter_add": of_axis(
        Case(lambda i: X[:1].scatter_add(1, i[None], X[:1, :2])), 11, wraps=False
    ),
    "index_add": of_axis(Case(lambda i: X.index_add(0, i, X[:2]).relu()), 6, wraps=False),
    "x[:, i] = 3": of_axis(
        Case(lambda i: X.index_put((torch.tensor([0, 1]), i), torch.tensor(3.0))), 11, wraps=True
    ),
    "one_hot": of_axis(Case(lambda i: nn.functional.one_hot(i, 7)), 7, wraps=False),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_index_is_eagers_or_an_error(name, device):
    module, good, bad = LOOKUPS[name]
    module.eval()
    torch.manual_seed(0)
    compiled = tilewright.compile(module, (torch.tensor([0, 0]),), target=device)
    size = max(good) + 1
    for index in good:
        i = torch.tensor([index, 0])
        with torch.no_grad():
            torch.testing.assert_close(compiled(i).cpu(), module(i))
    for index in bad:
        wrong = torch.tensor([0, index])
        with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
            module(wrong)
        with pytest.raises(IndexOutOfRange, match=f"index {index} is out of range.* size {size}"):
            compiled(wrong)
        i = torch.tensor([good[1], good[0]])  # and nothing of the fault stays
        with torch.no_grad():
            torch.testing.assert_close(compiled(i).cpu(), module(i))


def test_the_error_names_operation_module_and_line():
    compiled = tilewright.compile(Table().eval(), (torch.tensor([0, 1]),), target="cpu")
    with pytest.raises(
        IndexError, match=r"aten\.embedding\.default in words, from test_faults\.py"
    ):
        compiled(torch.tensor([9, 0]))


DIVISIONS = {
    "%": lambda a, b: a % b,
    "//": lambda a, b: a // b,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "summed": lambda a, b: (a % b).sum(),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.int64) for name in DIVISIONS] + [("%", torch.int32), ("//", torch.uint8)],
)
def test_an_integer_divided_by_zero(name, dtype, device):
    module = Case(DIVISIONS[name])
    a, b = torch.tensor([7, 5, 100], dtype=dtype), torch.tensor([3, 2, 9], dtype=dtype)
    compiled = tilewright.compile(module, (a, b), target=device)
    assert torch.equal(compiled(a, b).cpu(), module(a, b))
    b[1] = 0
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        module(a, b)
    with pytest.raises(DivisionByZero, match="integer is divided by zero"):
        compiled(a, b)
    b[1] = 1
    assert torch.equal(compiled(a, b).cpu(), module(a, b))


def test_floats_divided_by_zero_are_not_faults():
    module = Case(lambda a, b: (a // b, a % b, a / b))
    a, b = torch.tensor([1.0, -2.0, 0.0]), torch.zeros(3)
    got = tilewright.compile(module, (a, b), target="cpu")(a, b)
    torch.testing.assert_close(got, module(a, b), equal_nan=True)


def number(b, value):
    return b.constant(value, i64)


def program(outputs, b):
    return build(passes.run(b.graph(outputs), dense()).graph, cpu())


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("arange", lambda b, i: b.iota(length=4, start=2)),
        ("clamp", lambda b, i: b.maximum(b.minimum(i, number(b, 8)), number(b, 0))),
        ("rest", lambda b, i: b.mod(i, number(b, 9))),
        ("constant", lambda b, i: b.full(value=8, shape=(4,), dtype=i.dtype)),
        ("argmax", lambda b, i: b.argmax(b.input("y", (4, 9)), axis=-1)),
        ("checked before", lambda b, i: b.check_index(i, size=9, wraps=True)),
    ],
)  # fmt: skip
def test_what_is_proved_is_not_checked(name, index):
    b = Builder(name)
    i = b.input("i", (4,), i64)
    made = program([b.gather(b.input("x", (9, 3)), index(b, i))], b)
    assert [check.op for check in made.checks] == ["check_index"] * (name == "checked before")


def test_a_divisor_proved_nonzero_is_not_checked():
    b = Builder("rest")
    n = b.dim("n", 1)
    i = b.input("i", (n,), i64)
    rest = b.mod(b.floordiv(i, b.constant(3, i.dtype)), b.dim_value(value=n, dtype=i.dtype))
    assert program([rest], b).checks == ()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_an_axis_that_may_be_empty(rows):
    b = Builder("empty")
    n, k = b.dim("n", 0), b.dim("k", 0)
    x, i = b.input("x", (n, 4)), b.input("i", (k,), i64)
    graph = b.graph([b.gather(x, i)])
    exe = Executable(build(passes.run(graph, dense()).graph, cpu()), {}, CpuDevice(threads=1))
    x = np.ones((rows, 4), np.float32)
    assert exe(x, np.zeros(0, np.int64))[0].numpy().shape == (0, 4)
    assert exe(x, np.zeros(3 * (rows > 0), np.int64))[0].numpy().sum() == 12 * (rows > 0)
    with pytest.raises(IndexOutOfRange, match=f"index {rows} .* size {rows}"):
        exe(x, np.array([rows]))
    with pytest.raises(IndexOutOfRange, match=f"index {rows} .* size {rows}"):
        evaluate(graph, {"x": x, "i": np.array([rows])})
    with pytest.raises(IndexOutOfRange, match="index -1 "):  # NumPy itself would wrap it
        evaluate(graph, {"x": x, "i": np.array([-1])})


def test_a_constant_divided_by_zero_is_an_error_at_once():
    b = Builder("never")
    with b.at("the.module"):
        quotient = b.floordiv(b.constant(7, i64), b.constant(0, i64))
    graph = b.graph([b.add(b.input("i", (3,), i64), quotient)])
    with pytest.raises(DivisionByZero, match=r"floordiv \(the\.module\)"):
        passes.run(graph, dense())
    with pytest.raises(DivisionByZero, match=r"floordiv \(the\.module\)"):
        evaluate(graph, {"i": np.arange(3)})


def test_nothing_is_divided_by_a_constant_zero():
    def function(x, none):
        empty = torch.arange(0)
        return x + 1, none // 0, empty % 0, torch.triu_indices(0, 0), empty // torch.tensor([0])

    x, none = torch.ones(2), torch.zeros(0, 3, dtype=torch.int64)
    compiled = tilewright.compile(Case(function), (x, none), target="cpu")
    for ours, theirs in zip(compiled(x, none), function(x, none), strict=True):
        assert ours.shape == theirs.shape


def test_a_result_without_elements_looks_nothing_up():
    function = lambda x, i: x[i]  # noqa: E731
    x, i = torch.zeros(3, 0), torch.tensor([5, -7])
    assert tilewright.compile(Case(function), (x, i), target="cpu")(x, i).shape == (2, 0)
    assert function(x, i).shape == (2, 0)
