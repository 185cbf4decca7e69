"""Builds for every GPU target on a machine without one: what the default schedules make.

The matrix: contractions of every prologue in bf16, f16 and f32 for sm_90, and in bf16 for the other
targets; of every epilogue in bf16 for sm_90. Every schedule of the table is built with the plain
prologue, the table's ends with the others. Equal kernels are built once.
"""

import pytest

from tilewright.codegen.triton.choose import choices
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.codegen.triton.pool import compile_all
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, f16, f32

from .contractions import EPILOGUES, PROLOGUES, product

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

GPUS = [t for t in TARGETS.values() if t.is_gpu]
DTYPES = {t.name: (bf16, f16, f32) if t.name == "sm_90" else (bf16,) for t in GPUS}
SIZE = {"n": 128, "k": 200}  # the last tile of k is partly empty


def launches(case, target, every: bool):
    """What the default schedules launch; of the table's ends alone unless `every`."""
    schedules = [schedule for _, _, schedule in choices(case.kernel, target)[1]]
    chosen = schedules if every else [schedules[0], schedules[-1]]
    return [e for s in dict.fromkeys(chosen) for e in emit_kernel(case.kernel, "kernel", s, target)]


def build(found, target) -> None:
    """Build each distinct launch, by all cores."""
    distinct = list({(e.source, e.signature, e.num_warps, e.num_stages): e for e in found}.values())
    assert distinct
    for emitted, made in zip(distinct, compile_all(distinct, target), strict=True):
        assert made.binary[:4] == b"\x7fELF", emitted.name
        assert made.shared_bytes <= target.shared_bytes, emitted.name


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_contractions_of_every_prologue(target):
    found = []
    for number, prologue in enumerate(PROLOGUES):
        for dtype in DTYPES[target.name]:
            case = product(prologue, dtype=dtype, **SIZE)
            found += launches(case, target, every=number == 0)
    build(found, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_few_rows_of_float32(target):
    """Long rows of w, few and many: programs of several warps, and of one that loops."""
    found = []
    for n in (128, 600):
        case = product("norm", n=n, k=1100)
        (schedule,) = [s for low, _, s in choices(case.kernel, target)[1] if low == 2]
        found += emit_kernel(case.kernel, "kernel", schedule, target)
    build(found, target)


@pytest.mark.slow
def test_contractions_of_every_epilogue():
    target = TARGETS["sm_90"]
    found = []
    for epilogue in EPILOGUES:
        found += launches(product("rounded", epilogue, dtype=bf16, **SIZE), target, every=False)
    build(found, target)
