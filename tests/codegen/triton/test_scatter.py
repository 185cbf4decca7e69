"""Scatters, interpreted or on the GPU, against NumPy; and built for every GPU target."""

import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.scatter import ScatterSchedule
from tilewright.codegen.templates.sort import SortSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.ops.scatter import COMBINES
from tilewright.ir.types import bf16, bool_, f32, f64, i8

from .gpus import GPUS
from .harness import check
from .samples_places import scatter, scatter_elements
from .test_builds import build

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCHEDULES = [
    ScatterSchedule(4, 2),
    ScatterSchedule(8, 1, order=SortSchedule(16)),
    ScatterSchedule(2, 4, order=SortSchedule(4, 2)),
]


@pytest.mark.parametrize("combine", COMBINES)
def test_every_combine(runner, combine):
    check(runner, scatter_elements(combine, (2, 4, 3), (1, 6, 3)), SCHEDULES[0])


@pytest.mark.parametrize("schedule", SCHEDULES[1:], ids=str)
def test_updates_in_order(runner, schedule):
    """One place is met several times, and the last one stays."""
    check(runner, scatter("replace", (2, 3, 4)), schedule)
    check(runner, scatter_elements("add", (2, 4, 3), (1, 6, 3)), schedule)


@pytest.mark.parametrize("dtype", [bf16, f64, i8], ids=str)
def test_dtypes(runner, dtype):
    check(runner, scatter(dtype=dtype), SCHEDULES[0], 8e-3 if dtype == bf16 else 1e-5)


def test_flags(runner):
    check(runner, scatter_elements("max", dtype=bool_), SCHEDULES[0])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_axes_and_sizes(runner, schedule):
    for shape, index, axis in (((4, 3), (2, 3), 0), ((3, 0), (1,), 0)):
        check(runner, scatter("add", shape, index, axis), schedule)
    check(runner, scatter("add", (3, 1), (0,), 0), schedule)
    check(runner, scatter_elements("add", (4, 3), (4, 9), 1), schedule)


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_scatters_build(target):
    cases = [scatter(combine, (64, 300, 80), (500,), dtype=f32) for combine in COMBINES]
    cases += [scatter(dtype=f64), scatter_elements(dtype=i8), scatter_elements("max", dtype=bool_)]
    launches = []
    for case in cases:
        for _, _, schedule in choices(case.kernel, target)[1]:
            launches += emit_kernel(case.kernel, "kernel", schedule, target)
    build(launches, target)
