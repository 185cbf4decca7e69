"""Contractions, interpreted or on the GPU: every prologue and epilogue, and sizes of nothing."""

import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f16, f32, f64, i32

from . import samples
from .contractions import EPILOGUES, PROLOGUES, product
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

TARGET = get_target("sm_90")
SCHEDULES = [
    GemvSchedule(4, 16, 2),
    GemvSchedule(2, 64, 1, rows=4, fold=2),
    DotSchedule(16, 16, 16, True),
    DotSchedule(16, 32, 64, False),
    DotSchedule(16, 16, 32, True, has_tiles=True, programs=3),
    DotSchedule(16, 16, 32, False, materialize=True, has_tiles=True, programs=2, group=2),
    DotSchedule(16, 16, 16, True, materialize=True),
]


def tolerance_of(prologue: str) -> float:
    """The interpreter rounds towards zero where GPUs round to nearest."""
    return 8e-3 if "rounded" in prologue else 1e-5


@pytest.mark.parametrize("prologue", PROLOGUES)
def test_prologues(runner, prologue):
    for schedule in SCHEDULES:
        check(runner, product(prologue), schedule, tolerance_of(prologue))
    narrow = product(prologue, dtype=bf16)
    stored = bool(narrow.kernel.parts[0].phases)  # x is then stored in bf16, cut by the interpreter
    check(runner, narrow, SCHEDULES[2], 1.6e-2 if stored else 8e-3)
    check(runner, product(prologue, dtype=f16), SCHEDULES[0], 1e-3)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(runner, epilogue):
    tolerance = 8e-3 if epilogue == "rounded and not" else 1e-5
    for schedule in SCHEDULES[::2]:
        check(runner, product("norm", epilogue, m=17), schedule, tolerance)


SIZES = [(0, 3, 5), (1, 1, 1), (1, 2, 0), (4, 1, 0), (17, 33, 1), (2, 1, 130)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prologue", ["plain", "rounded", "activation"])
def test_sizes_of_nothing_one_and_odd(runner, size, prologue):
    for schedule in SCHEDULES:
        case = product(prologue, "bias and residual", *size)
        check(runner, case, schedule, tolerance_of(prologue))


@pytest.mark.parametrize("pair", [(bf16, f32), (f32, bf16), (bf16, f16)])
def test_operands_of_two_dtypes(runner, pair):
    stored, computed = pair
    for schedule in SCHEDULES[::2]:
        case = product("plain", dtype=computed, w_dtype=stored)
        check(runner, case, schedule, 1e-5 if computed == f32 else 8e-3)


@pytest.mark.parametrize("dtype", [i32, f64])
def test_what_matrix_units_do_not_take(runner, dtype):
    _, buckets = choices(product("plain", dtype=dtype).kernel, TARGET)
    for (_, _, schedule), m in zip(buckets, (1, 9), strict=True):
        assert isinstance(schedule, GemvSchedule)
        case = product("activation" if dtype == f64 else "plain", m=m, n=6, dtype=dtype)
        check(runner, case, schedule, 1e-12)


@pytest.mark.parametrize(
    ("n", "k"), [(96, 64), (1000, 200), (9000, 200), (1000, 2100), (3000, 2100)]
)
def test_few_rows_of_float32_share_what_is_read_of_weights(n, k):
    kernel = product("norm", n=n, k=k).kernel
    _, buckets = choices(kernel, TARGET)
    ((low, high, schedule),) = [b for b in buckets if b[0] == 2]
    assert isinstance(schedule, GemvSchedule)
    assert schedule.rows >= 4
    (launch,) = emit_kernel(kernel, "kernel", schedule, TARGET)
    for m in (low, 3, 4, 17, high):
        tiles = -(-m // schedule.rows) * -(-n // schedule.bn)
        assert evaluate(launch.grid[0], {"t": m}) == tiles


@pytest.mark.parametrize(("n", "k"), [(6, 2100), (2000, 2100), (6, 33)])
def test_few_rows_of_float32(runner, n, k):
    """Each shape of program: two warps to a row of w, one warp in a loop, and written out."""
    _, buckets = choices(product(n=n, k=k).kernel, TARGET)
    check(runner, product("norm", "bias and residual", 5, 6, k), buckets[1][2])


def test_few_rows_of_weights_that_lie_across_go_through_tiles():
    """A program that takes a few rows of w would read a part of each line of memory."""
    b = Builder()
    y = b.matmul(b.input("x", (b.dim("t", 0, 512), 64), f32), b.weight("w", (64, 96), f32))
    _, buckets = choices(samples.make(b, [y], {"t": 3}).kernel, TARGET)
    kinds = [(low, type(schedule)) for low, _, schedule in buckets]
    assert kinds[:2] == [(0, GemvSchedule), (2, DotSchedule)]
    assert {kind for _, kind in kinds[2:]} == {DotSchedule}


def test_gated_over_nothing(runner):
    for m, n, k in ((2, 5, 0), (0, 5, 3)):
        for schedule in SCHEDULES[:3]:
            check(runner, samples.gated(m, n, k), schedule)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_two_weights_that_are_one_are_multiplied_as_one(runner, is_swapped):
    schedule = DotSchedule(16, 16, 32, is_swapped, True, has_tiles=True, programs=2)
    case = samples.gated(17, 24, 40, stacked=True)
    launch = emit_kernel(case.kernel, "kernel", schedule, TARGET, interpret=True)[-1]
    assert launch.source.count("tl.dot(") == 1
    check(runner, case, schedule)
    apart = emit_kernel(samples.gated(17, 24, 40).kernel, "kernel", schedule, TARGET)[-1]
    assert apart.source.count("tl.dot(") == 2


def test_rows_that_lie_across_one_another_are_no_matrix_in_memory(runner):
    b = Builder()
    x = b.transpose(b.input("x", (2, 8, 64), f32), perm=(1, 0, 2))
    y = b.matmul(b.reshape(x, shape=(16, 64)), b.weight("w", (24, 64), f32), transpose_w=True)
    schedule = DotSchedule(16, 16, 32, False, has_tiles=True, programs=2)
    case = samples.make(b, [y], {})
    (launch,) = emit_kernel(case.kernel, "kernel", schedule, TARGET)
    assert launch.source.count("tl.make_tensor_descriptor(") == 1
    check(runner, case, schedule)
