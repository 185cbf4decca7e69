"""Operations that have no kernel, left to torch unless the caller forbids it."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import tilewright
from tilewright.frontend.torch_export import import_module
from tilewright.ir.errors import UnsupportedOp
from tilewright.ir.evaluate import evaluate
from tilewright.ir.steps import HostCall, walk


@torch.library.custom_op("tilewright_tests::repeated", mutates_args=())
def repeated(x: torch.Tensor, counts: torch.Tensor, scale: float) -> torch.Tensor:
    """Rows of x so often as counts says: how many rows that are depends on data."""
    return torch.repeat_interleave(x, counts, 0) * scale


@repeated.register_fake
def _(x, counts, scale):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])


@torch.library.custom_op("tilewright_tests::split", mutates_args=())
def split(x: torch.Tensor, flip: bool) -> list[torch.Tensor]:
    """The rows of even and of odd index, in the other order with `flip`."""
    parts = [x[::2].clone(), x[1::2].clone()]
    return parts[::-1] if flip else parts


@split.register_fake
def _(x, flip):
    sizes = (x.shape[0] - x.shape[0] // 2, x.shape[0] // 2)
    return [x.new_empty(n, x.shape[1]) for n in (sizes[::-1] if flip else sizes)]


@torch.library.custom_op("tilewright_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """X plus a whole number."""
    return x + by


@shifted.register_fake
def _(x, by):
    return torch.empty_like(x)


class Mixed(torch.nn.Module):
    """Ours, torch's own and custom operations, one of them in a branch."""

    def forward(self, x, counts):
        x = torch.cond(x.sum() > 0, lambda x: torch.special.airy_ai(x + 1), lambda x: -x, (x * 2,))
        rows = repeated(x, counts, 0.5)
        even, odd = split(rows + 1, True)
        return even.sum(0) - odd.sum(0), rows


def test_what_we_lack_is_called():
    module = Mixed()
    example = (torch.rand(4, 3), torch.tensor([1, 0, 2, 3]))
    compiled = tilewright.compile(module, example, target="cpu")
    assert compiled.fallback_ops == 3
    assert re.search(
        r"aten.special_airy_ai.default\(_\) x 1: 96 bytes, \d+% of all", str(compiled.report)
    )
    calls = [s for s in walk(compiled.program.steps) if isinstance(s, HostCall)]
    assert [s.function.partition("(")[0] for s in calls] == [
        "aten.special_airy_ai.default",
        "tilewright_tests.repeated.default",
        "tilewright_tests.split.default",
    ]
    for counts in ([1, 0, 2, 3], [0, 0, 0, 1], [9, 1, 1, 1]):
        for sign in (1, -1):
            args = torch.rand(4, 3) * sign, torch.tensor(counts)
            for got, wanted in zip(compiled(*args), module(*args), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_strict_refuses_them_all_at_once():
    example = torch.rand(4, 3), torch.tensor([1, 0, 2, 3])
    with pytest.raises(UnsupportedOp, match=r"3 unsupported(.|\n)*airy_ai(.|\n)*strict=True"):
        tilewright.compile(Mixed(), example, target="cpu", strict=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_every_dtype_goes_there_and_back(dtype):
    class Gamma(torch.nn.Module):
        def forward(self, x):
            return torch.igamma(x + 1, x + 2).neg()

    compiled = tilewright.compile(Gamma(), (torch.rand(3, 2).to(dtype),), target="cpu")
    x = torch.rand(3, 2).to(dtype)
    got, wanted = compiled(x), Gamma()(x)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted)


def test_what_is_no_function_of_its_tensors_is_refused_all_the_same():
    class Random(torch.nn.Module):
        def forward(self, x):
            return torch.poisson(x) + torch.zeros(3).normal_()

    with pytest.raises(UnsupportedOp, match="it draws random numbers"):
        import_module(Random(), (torch.rand(3),), fallback=True)

    class Sparse(torch.nn.Module):
        def forward(self, x):
            return x.to_sparse().values()

    with pytest.raises(UnsupportedOp, match=r"to_sparse(.|\n)*its results are sparse"):
        import_module(Sparse(), (torch.eye(3),), fallback=True)


def test_a_saved_program_calls_what_its_process_has_registered(tmp_path):
    class Gamma(torch.nn.Module):
        def forward(self, x):
            return torch.igamma(x, x) + torch.igammac(x, x)

    compiled = tilewright.compile(Gamma(), (torch.rand(3),), target="cpu")
    compiled.save(tmp_path / "gamma")
    x = torch.rand(3)
    torch.testing.assert_close(tilewright.load(tmp_path / "gamma")(x), Gamma()(x))
    script = """
import sys
import numpy as np
import tilewright
from tilewright.ir.errors import DeviceError
from tilewright.ir.host_functions import register_function

try:
    tilewright.load(sys.argv[1])
except DeviceError as error:
    print(error)
register_function("aten.igamma.default(_, _)", lambda x, y: x + 10)
register_function("aten.igammac.default(_, _)", lambda x, y: x + y)
print(tilewright.load(sys.argv[1])(np.ones(3, np.float32)).numpy(), "torch" in sys.modules)
"""
    command = [sys.executable, "-c", script, tmp_path / "gamma"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 functions that this process has not registered" in told
    assert "aten.igamma.default(_, _)\n" in told
    assert "aten.igammac.default(_, _)\n" in told
    assert told.endswith("[13. 13. 13.] False\n")


def test_checks_of_values_run_and_are_no_results():
    class Solve(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.solve(x, x[0]) + torch.linalg.inv(x).sum(0)

    x = torch.eye(3) * 2
    with pytest.raises(UnsupportedOp, match="_linalg_check_errors"):
        import_module(Solve(), (x,))
    compiled = tilewright.compile(Solve(), (x,), target="cpu")
    torch.testing.assert_close(compiled(x), Solve()(x))
    with pytest.raises(RuntimeError, match="is singular"):
        compiled(torch.zeros(3, 3))


def test_sizes_and_numbers_of_data_are_given_when_it_runs():
    class Sized(torch.nn.Module):
        def forward(self, x, n):
            count = n.item()
            torch._check(count >= 0)
            return shifted(x, x.shape[0] * 10), shifted(x, count + 1)

    sizes = {"x": {0: torch.export.Dim("n", max=64)}, "n": None}
    imported = import_module(
        Sized(), (torch.rand(5), torch.tensor(3)), dynamic_shapes=sizes, fallback=True
    )
    for size, number in ((1, 7), (2, 0), (9, 3)):
        x = torch.rand(size)
        given = {"x": x.numpy(), "n": np.array(number)}
        outputs, _ = evaluate(imported.graph, given, precision=None)
        for ours, by in zip(outputs, (size * 10, number + 1), strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), x + by)


def test_dtypes_that_a_row_does_not_take_are_left_to_torch():
    class Fraction(torch.nn.Module):
        def forward(self, x):
            return torch.frexp(x)[0]

    x = torch.tensor([5.5, -0.0, 1e-320], dtype=torch.float64)
    imported = import_module(Fraction(), (x,), fallback=True)
    (got,), _ = evaluate(imported.graph, {"x": x.numpy()}, precision=None)
    torch.testing.assert_close(torch.from_numpy(got), Fraction()(x))
