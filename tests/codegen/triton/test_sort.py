"""Sorts, interpreted or on the GPU, against NumPy; and built for every GPU target."""

import numpy as np
import pytest

from tilewright.codegen.lower import lower_group
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.sort import SortSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, bool_, f32, f64, i8, i64, u8

from .gpus import GPUS
from .harness import check
from .samples_places import sort
from .test_builds import build

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCHEDULES = [SortSchedule(32), SortSchedule(16, 1), SortSchedule(4, 3)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("keep", [None, 5])
def test_order(runner, schedule, keep):
    shape, axis = ((2, 21), 1) if keep is None else ((21, 2), 0)
    check(runner, sort(shape, axis, keep == 5, keep), schedule)


@pytest.mark.parametrize("dtype", [bf16, f64, i64, i8, u8, bool_], ids=str)
def test_dtypes(runner, dtype):
    check(runner, sort((1, 9), 1, dtype.bits == 8, dtype=dtype), SortSchedule(8, 1))


def test_what_is_no_number(runner):
    """NaN is largest, and nothing is told of zero's sign."""
    for descending in (False, True):
        case = sort((1, 12), 1, descending)
        case.arrays[0][0, :8] = [0.0, np.nan, -0.0, np.inf, -np.inf, np.nan, -0.0, 0.0]
        check(runner, case, SortSchedule(4, 2))


@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (0, 3)])
def test_rows_of_nothing_and_one(runner, shape):
    check(runner, sort(shape), SortSchedule(2, 1))
    check(runner, sort((2, 3), keep=0), SortSchedule(4))


@pytest.mark.parametrize("n", [1, 1024, 1025, 70000])
def test_a_schedule_covers_every_size(n):
    """A size that is known has one; a size that is not, one for each."""
    target = TARGETS["sm_90"]
    _, buckets = choices(sort((2, n)).kernel, target)
    assert [(low, high) for low, high, _ in buckets] == [(0, None)]
    b = Builder()
    values, _ = b.sort(b.input("x", (2, b.dim("n", 0, 1 << 20)), f32))
    graph = b.graph([values])
    size, buckets = choices(lower_group(graph, graph.nodes, {}).kernel, target)
    (schedule,) = [s for low, high, s in buckets if low <= evaluate(size, {"n": n}) <= high]
    assert schedule.tile << schedule.passes >= n


# Full tiles take long to build: of the widest elements, and across rows, by turns.
FULL = [sort((4, 5000), dtype=f64), sort((100000, 3), 0, True, keep=50)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(GPUS)), ids=lambda n: GPUS[n].name)
def test_sorts_build(number):
    target = GPUS[number]
    cases = [sort((4, 9), dtype=dtype) for dtype in (f32, f64, i64, bool_)]
    cases += [sort((7, 1)), FULL[number % len(FULL)]]
    launches = []
    for case in cases:
        for _, _, schedule in choices(case.kernel, target)[1]:
            launches += emit_kernel(case.kernel, "kernel", schedule, target)
    build(launches, target)
