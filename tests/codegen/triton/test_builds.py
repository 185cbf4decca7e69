"""Contractions of every prologue and epilogue, under every default schedule, build for GPUs.

A kernel is decided by prologue, epilogue, dtype, schedule and target. All of these against each
other are too many, so schedules are dealt out to the targets: of one prologue or epilogue, each
schedule of the table is built for one target, and each target has another of them. Every target
builds float32 and one of bf16 and f16, neighbours not the same. Equal kernels are built once.
"""

import pytest

from tilewright.codegen.triton.choose import choices
from tilewright.codegen.triton.emit import Emitted, emit_kernel
from tilewright.codegen.triton.pool import compile_all
from tilewright.ir.target import TARGETS, Target
from tilewright.ir.types import bf16, f16, f32

from .contractions import EPILOGUES, PROLOGUES, product
from .harness import Case

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

GPUS = [t for t in TARGETS.values() if t.is_gpu]
SIZE = {"n": 128, "k": 200}  # the last tile of k is partly empty


def dealt(case: Case, target: Target, place: int) -> list[Emitted]:
    """What the schedules that fall to place `place` of the targets launch."""
    schedules = [*dict.fromkeys(schedule for _, _, schedule in choices(case.kernel, target)[1])]
    chosen = schedules[place % len(GPUS) :: len(GPUS)]
    return [e for s in chosen for e in emit_kernel(case.kernel, "kernel", s, target)]


def build(launches: list[Emitted], target: Target) -> None:
    """Compile them: each gives a binary that fits."""
    for emitted, made in zip(launches, compile_all(launches, target), strict=True):
        assert made.binary[:4] == b"\x7fELF", emitted.name
        assert made.shared_bytes <= target.shared_bytes, emitted.name


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_contractions_build(target):
    parts = [(prologue, None) for prologue in PROLOGUES]
    parts += [("rounded", epilogue) for epilogue in EPILOGUES]
    found = {}
    for number, (prologue, epilogue) in enumerate(parts):
        place = GPUS.index(target)
        half = (bf16, f16)[(place + number // 2) % 2]  # not always with the same schedules
        for dtype in (half, f32):
            case = product(prologue, epilogue, dtype=dtype, **SIZE)
            for e in dealt(case, target, place + number):
                found[e.source, e.signature, e.num_warps, e.num_stages] = e
    build(list(found.values()), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_few_rows_of_float32(target):
    """Long rows of w, few and many: programs of several warps, and of one that loops."""
    found = []
    for n in (128, 1200):
        case = product("norm", n=n, k=2100)
        (schedule,) = [s for low, _, s in choices(case.kernel, target)[1] if low == 2]
        found += emit_kernel(case.kernel, "kernel", schedule, target)
    build(found, target)


def test_each_schedule_falls_to_one_target():
    """Also where a table is shorter than there are targets."""
    for dtype in (bf16, f16, f32):
        case = product("norm", dtype=dtype, **SIZE)
        for target in GPUS:
            schedules = {schedule for _, _, schedule in choices(case.kernel, target)[1]}
            launched = [e for place in range(len(GPUS)) for e in dealt(case, target, place)]
            wanted = [e for s in schedules for e in emit_kernel(case.kernel, "kernel", s, target)]
            assert sorted(e.source for e in launched) == sorted(e.source for e in wanted)
