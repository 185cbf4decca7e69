"""Contractions of every prologue and epilogue, in every dtype of a matrix unit and under every
default schedule, build for every GPU target.
"""

import re
from dataclasses import replace

import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.triton.emit import Emitted, emit_kernel
from tilewright.codegen.triton.pool import compile_all
from tilewright.ir.errors import BuildError
from tilewright.ir.target import Target, target_of
from tilewright.ir.types import bf16, f16, f32

from .contractions import EPILOGUES, PROLOGUES, product
from .gpus import GPUS
from .samples import linear

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SIZE = {"n": 128, "k": 200}  # the last tile of k is partly empty


def numbered_by_use(emitted: Emitted) -> Emitted:
    """What decides the binary, without arguments that are not used, the others by first use.

    A product reads an x that a launch before it stored, whatever that was made from.
    """
    before, after = emitted.source.split(f"def {emitted.name}(")
    body = after[after.index("\n") :]
    types = dict(emitted.signature)
    used = dict.fromkeys(name for name in re.findall(r"\b[ps]\d+\b", body) if name in types)
    numbers = {name: f"argument{number}" for number, name in enumerate(used)}
    return replace(
        emitted.code,
        source=before + re.sub(r"\b[ps]\d+\b", lambda m: numbers.get(m[0], m[0]), body),
        signature=tuple((numbers[name], types[name]) for name in used),
        aligned=tuple(numbers[name] for name in used if name in emitted.aligned),
    )


def build(launches: list[Emitted], target: Target) -> None:
    """Compile them, equal ones once: each gives a binary that fits."""
    launches = list({numbered_by_use(e): e for e in launches}.values())
    for emitted, made in zip(launches, compile_all(launches, target), strict=True):
        assert made.binary[:4] == b"\x7fELF", emitted.name
        assert made.shared_bytes <= target.shared_bytes, emitted.name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_contractions_build(target, dtype):
    # f16 differs from bf16 in its name alone
    parts = [(prologue, None) for prologue in (PROLOGUES if dtype != f16 else ("plain", "norm"))]
    parts += [("rounded", epilogue) for epilogue in EPILOGUES]
    found = []
    for prologue, epilogue in parts:
        case = product(prologue, epilogue, dtype=dtype, **SIZE)
        for schedule in dict.fromkeys(s for _, _, s in choices(case.kernel, target)[1]):
            found += emit_kernel(case.kernel, "kernel", schedule, target)
    build(found, target)


@pytest.mark.slow
def test_a_gpu_with_less_shared_memory_gets_kernels_that_fit():
    """Those of sm_80 do not: they would be built for an sm_89, and fail when it loads them."""
    case, target, launches = linear(4, 4096, 4096, bf16), target_of("sm_89"), []
    for chosen in (target, target_of("sm_80")):
        (schedule,) = [s for low, _, s in choices(case.kernel, chosen)[1] if low == 17]
        launches.append(emit_kernel(case.kernel, "kernel", schedule, chosen)[1])
    own, larger = launches
    build([own], target)
    with pytest.raises(BuildError, match="needs more shared memory than sm_86 has"):
        build([larger], target)


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
