"""Weights whose elements share bytes, in Triton: interpreted or on the GPU, and built for each."""

import numpy as np
import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.target import get_target
from tilewright.ir.types import f32, i2, i4, u2, u4

from ..packed import linear, lookup, moved
from . import samples
from .gpus import GPUS
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

CASES = {
    "u4": lambda m: linear(u4, m, 24, 64, 32, u4),
    "i4": lambda m: linear(i4, m, 5, 30, 15, None),
    "u2": lambda m: linear(u2, m, 17, 37, 37, f32),
}


def case_of(packed):
    return samples.make(packed.b, packed.outputs, {}, {**packed.inputs, **packed.weights})


@pytest.mark.parametrize("m", [1, 3, 17, 70])
@pytest.mark.parametrize("name", CASES)
def test_products(runner, name, m):
    packed = CASES[name](m)
    case = case_of(packed)
    (want,) = packed.wanted()
    np.testing.assert_allclose(case.expected()[-1], want.reshape(-1), rtol=1e-5, atol=1e-4)
    for _, _, schedule in choices(case.kernel, get_target("sm_90"))[1]:
        check(runner, case, schedule, 1e-5)


@pytest.mark.parametrize("make", [lookup, moved])
@pytest.mark.parametrize("dtype", [u4, i2], ids=str)
def test_elements_of_a_table(runner, dtype, make):
    packed = make(dtype, 9, 7)
    case = case_of(packed)
    stored = [at for at in case.written() if at != case.kernel.records]
    for at, want in zip(stored, packed.wanted(), strict=True):
        np.testing.assert_array_equal(case.expected()[at], want.reshape(-1))
    for _, _, schedule in choices(case.kernel, get_target("sm_90"))[1]:
        check(runner, case, schedule, 0)


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_products_build(target):
    kernel = case_of(CASES["u4"](17)).kernel
    for _, _, schedule in choices(kernel, target)[1]:
        for emitted in emit_kernel(kernel, "kernel", schedule, target):
            assert compile_kernel(emitted, target).binary[:4] == b"\x7fELF"
