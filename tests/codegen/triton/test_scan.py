"""Scans, interpreted or on the GPU, against NumPy; and built for every GPU target."""

import numpy as np
import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.scan import ScanSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.op import OPS
from tilewright.ir.types import bf16, f32, f64, i8, i64

from .gpus import GPUS
from .harness import check
from .samples_places import scan
from .test_builds import build

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCANS = [name for name, op in OPS.items() if op.kind == "scan"]


SCHEDULES = [
    ScanSchedule(2, 16, True),
    ScanSchedule(2, 8, False),
    ScanSchedule(1, 8, False, piece=8),
    ScanSchedule(2, 4, False, piece=8),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums(runner, schedule, axis):
    check(runner, scan(axis=axis), schedule)


@pytest.mark.parametrize("name", SCANS)
def test_every_combine(runner, name):
    check(runner, scan(name, (1, 7)), ScanSchedule(1, 2, False, piece=4))


@pytest.mark.parametrize("dtype", [bf16, f64, i64, i8], ids=str)
def test_dtypes(runner, dtype):
    check(runner, scan(shape=(2, 7), dtype=dtype), SCHEDULES[3], 8e-3 if dtype == bf16 else 1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 0), (3, 17)])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_rows_of_nothing_one_and_odd(runner, shape, schedule):
    check(
        runner, scan(shape=shape), ScanSchedule(2, 32, True) if schedule.is_persistent else schedule
    )


def test_a_nan_stays(runner):
    case = scan("cummax")
    case.arrays[0][0, 5] = np.nan
    check(runner, case, SCHEDULES[3])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_sign_of_zero_is_carried_on(runner, schedule, dtype):
    case = scan("cumprod", (2, 13), dtype=dtype)
    case.arrays[0][:] = 1.0
    case.arrays[0][0, 0] = -0.0
    (number,) = case.written()
    got, want = runner.run(case, schedule)[number], case.expected()[number]
    assert np.signbit(want[1:13]).all()  # the first is multiplied with itself
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_scans_build(target):
    cases = [scan(name, (3, 20000), dtype=dtype) for name in SCANS for dtype in (f32, f64)]
    cases += [
        scan("cumsum", (20000, 64), 0),
        scan("cummax", (64, 50), 0),
        scan("cumsum", dtype=i8),
        scan("cummax", dtype=i64),
    ]
    build(
        [
            e
            for c in cases
            for _, _, s in choices(c.kernel, target)[1]
            for e in emit_kernel(c.kernel, "kernel", s, target)
        ],
        target,
    )
