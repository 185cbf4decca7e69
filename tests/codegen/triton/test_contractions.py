"""Contractions, interpreted or on the GPU: every prologue and epilogue, and sizes of nothing."""

import pytest

from tilewright.codegen.triton.choose import choices
from tilewright.codegen.triton.schedule import DotSchedule, GemvSchedule
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f16, f32, i32

from . import samples
from .contractions import EPILOGUES, PROLOGUES, product
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCHEDULES = [
    GemvSchedule(4, 16, 2),
    GemvSchedule(2, 64, 1),
    DotSchedule(16, 16, 16, True),
    DotSchedule(16, 32, 64, False),
    DotSchedule(16, 16, 16, True, materialize=True),
]


def tolerance_of(prologue: str) -> float:
    """The interpreter rounds towards zero where GPUs round to nearest."""
    return 8e-3 if "rounded" in prologue else 1e-5


@pytest.mark.parametrize("prologue", PROLOGUES)
def test_prologues(runner, prologue):
    for schedule in SCHEDULES:
        check(runner, product(prologue), schedule, tolerance_of(prologue))
    check(runner, product(prologue, dtype=bf16), SCHEDULES[2], 8e-3)
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


def test_integers(runner):
    check(runner, product("plain", dtype=i32), GemvSchedule(4, 16, 2))
    _, buckets = choices(product("plain", dtype=i32).kernel, get_target("sm_90"))
    assert all(isinstance(schedule, GemvSchedule) for _, _, schedule in buckets)


def test_gated_over_nothing(runner):
    for m, n, k in ((2, 5, 0), (0, 5, 3)):
        for schedule in SCHEDULES[:3]:
            check(runner, samples.gated(m, n, k), schedule)
