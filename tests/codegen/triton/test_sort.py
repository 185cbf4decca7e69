"""Sorts, interpreted or on the GPU, against NumPy; and built for every GPU target."""

import numpy as np
import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.sort import SortSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, bool_, f32, f64, i8, i64, u8

from .harness import check
from .samples import sort
from .test_builds import build

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCHEDULES = [SortSchedule(32), SortSchedule(16, 1), SortSchedule(8, 2), SortSchedule(2, 4)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keep", [None, 1, 5])
def test_order(runner, schedule, axis, keep):
    shape = (2, 21) if axis else (21, 2)
    check(runner, sort(shape, axis, keep == 5, keep), schedule)


@pytest.mark.parametrize("dtype", [bf16, f64, i64, i8, u8, bool_], ids=str)
def test_dtypes(runner, dtype):
    for descending in (False, True):
        check(runner, sort((2, 9), 1, descending, dtype=dtype), SortSchedule(8, 1))


def test_what_is_no_number(runner):
    """NaN is largest, and nothing is told of zero's sign."""
    for descending in (False, True):
        case = sort((1, 12), 1, descending)
        case.arrays[0][0, :8] = [0.0, np.nan, -0.0, np.inf, -np.inf, np.nan, -0.0, 0.0]
        check(runner, case, SortSchedule(4, 2))


@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (0, 3)])
def test_rows_of_nothing_and_one(runner, shape):
    for schedule in (SortSchedule(4), SortSchedule(2, 1)):
        check(runner, sort(shape), schedule)
    check(runner, sort((2, 3), keep=0), SortSchedule(4))


@pytest.mark.slow
@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.is_gpu], ids=lambda t: t.name)
def test_sorts_build(target):
    cases = [sort((4, n), dtype=dtype) for n in (9, 5000) for dtype in (f32, f64, i64, bool_)]
    cases += [sort((4, 100000), keep=50), sort((5000, 3), 0, True)]
    launches = []
    for case in cases:
        for _, _, schedule in choices(case.kernel, target)[1]:
            launches += emit_kernel(case.kernel, "kernel", schedule, target)
    build(launches, target)
