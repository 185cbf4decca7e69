"""Products of bytes and of float8: on the matrix unit where it makes them exactly enough."""

import numpy as np
import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f8e4m3, f8e5m2, f16, f32, i8, i16, i32, i64

from . import samples
from .contractions import product
from .gpus import GPUS
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

PAIRS = {
    "f8e4m3": (f8e4m3, f8e4m3), "f8e5m2": (f8e5m2, f8e5m2), "both": (f8e4m3, f8e5m2),
    "with f16": (f16, f8e4m3), "with bf16": (f8e5m2, bf16),
}  # fmt: skip


def integers(m, n=24, k=200, stored=i8, made=i32):
    """x @ w^T of integers that are stored narrower than they are added."""
    b = Builder()
    x, w = b.input("x", (b.dim("t", 0, 4096), k), stored), b.weight("w", (n, k), stored)
    y = b.matmul(b.cast(x, dtype=made), b.cast(w, dtype=made), transpose_w=True)
    rng = np.random.default_rng(m)
    draw = lambda *shape: rng.integers(-128, 128, shape)  # noqa: E731
    return samples.make(b, [y], {"t": m}, {"x": draw(m, k), "w": draw(n, k)})


def floats(m, x_dtype, w_dtype, n=24, k=72):
    """x @ w^T in float32 of float8 that is widened when it is read."""
    b = Builder()
    x, w = b.input("x", (b.dim("t", 0, 4096), k), x_dtype), b.weight("w", (n, k), w_dtype)
    y = b.matmul(b.cast(x, dtype=f32), b.cast(w, dtype=f32), transpose_w=True)
    return samples.make(b, [y], {"t": m})


def buckets(case, target=None):
    return choices(case.kernel, target or get_target("sm_90"))[1]


def kinds(case, target=None) -> list[type]:
    return [type(schedule) for _, _, schedule in buckets(case, target)]


def test_bytes_are_added_exactly(runner):
    """Sums of 200 products of bytes, up to 3 million: no narrower sum holds them."""
    for m, (_, _, schedule) in zip((1, 5, 33), buckets(integers(1)), strict=False):
        case = integers(m)
        check(runner, case, schedule, 0)
        assert np.abs(case.expected()[-1]).max() > 2**15


def test_bytes_wrap_as_bytes(runner):
    for m, (_, _, schedule) in zip((1, 5, 33), buckets(product("plain", dtype=i8)), strict=False):
        check(runner, product("plain", m=m, dtype=i8), schedule, 0)


@pytest.mark.parametrize("name", PAIRS)
def test_float8(runner, name):
    for m, (_, _, schedule) in zip((1, 5, 33), buckets(floats(1, *PAIRS[name])), strict=False):
        check(runner, floats(m, *PAIRS[name]), schedule, 1e-5)


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_more_than_one_row_goes_to_the_matrix_unit(target):
    on_unit = [floats(3, *pair) for pair in PAIRS.values()]
    on_unit += [integers(3), product("plain", dtype=i8), product("norm", dtype=bf16)]
    for case in on_unit:
        first, *others = kinds(case, target)
        assert (first, set(others)) == (GemvSchedule, {DotSchedule})
    for made in (integers(3, made=i64), integers(3, stored=i16), product(dtype=i32)):
        assert set(kinds(made, target)) == {GemvSchedule}


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_they_build(target):
    """Float8 is fed as it is where sums of it are as exact."""
    for case in (integers(3), floats(3, f8e4m3, f8e4m3, n=128)):
        part = case.kernel.parts[0]
        fed = target.matrix_op(part.x_dtype, part.w_dtype).operand
        _, (_, _, schedule), *_ = buckets(case, target)
        (launch,) = emit_kernel(case.kernel, "kernel", schedule, target)
        body = launch.source[launch.source.index("def kernel(") :]
        assert (".to(tl.float8e4nv, bitcast=True)" in body) == (fed == f8e4m3)
        assert compile_kernel(launch, target).binary[:4] == b"\x7fELF"
