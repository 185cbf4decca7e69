"""Pointwise kernels: splits, guards, indirect indices, storage dtypes, and any size."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.loops import (
    Apply,
    Axis,
    Cast,
    Const,
    Index,
    Load,
    LoopKernel,
    Param,
    Pointwise,
    Select,
    Store,
)  # fmt: skip
from tilewright.ir.dim import maximum, symbol
from tilewright.ir.encoding import Encoding
from tilewright.ir.types import TensorType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8

from .harness import Library

n, i, j, g = (symbol(s) for s in ("n", "i", "j", "g"))
COPIES = ((f32, bf16), (f32, f16), (bf16, f32), (f16, f32), (f64, bf16), (f32, i8), (f32, u8),
          (f32, i64), (i64, f32), (bool_, f32), (f32, bool_), (i32, f16))  # fmt: skip


def read(t: TensorType) -> Param:
    return Param(t, False)


def written(t: TensorType) -> Param:
    return Param(t, True)


def wide(dtype):
    return f32 if dtype in (bf16, f16) else dtype


def copy(source, dtype) -> LoopKernel:
    x = Load(0, i, wide(source))
    part = Pointwise((Axis("i", n),), (Store(1, i, Cast(x, dtype)),))
    params = (read(TensorType((n,), source)), written(TensorType((n,), dtype)))
    return LoopKernel(params, (part,), ("n",), "pointwise")


def rotate() -> LoopKernel:
    """Two cuts of the swept axis and one condition on the outer one."""
    at = i * 48 + j
    x = Load(0, at, f32)
    inner = Select(j, 16, Apply("neg", (Load(0, at + 32, f32),), f32), Load(0, at - 16, f32), f32)
    cut = Select(40, j + 1, Const(5.0, f32), inner, f32)  # 40 <= j
    value = Select(i, 2, cut, Apply("add", (cut, x), f32), f32)
    part = Pointwise((Axis("i", n), Axis("j", 48)), (Store(1, at, value),))
    type = TensorType((n, 48), f32)
    return LoopKernel((read(type), written(type)), (part,), ("n",), "pointwise")


def hard_select() -> LoopKernel:
    """A condition that no cut decides; the side not taken would read out of bounds."""
    value = Select(j % 3, 1, Load(0, j // 3, f32), Const(-1.0, f32), f32)
    below = Select(0 - j, 3 - n, Const(2.0, f32), value, f32)  # j > n - 3
    part = Pointwise((Axis("j", n),), (Store(1, j, below),))
    params = (read(TensorType(((n + 2) // 3,), f32)), written(TensorType((n,), f32)))
    return LoopKernel(params, (part,), ("n",), "pointwise")


def append() -> LoopKernel:
    """Rows scattered to slots; a negative slot writes nothing."""
    slot = Load(1, i, i32)
    store = Store(2, g * 24 + j, Load(0, i * 24 + j, f32), (("g", slot),), guard=slot)
    part = Pointwise((Axis("i", n), Axis("j", 24)), (store,))
    params = (
        read(TensorType((n, 24), f32)), read(TensorType((n,), i32)),
        written(TensorType((50, 24), bf16)),
    )  # fmt: skip
    return LoopKernel(params, (part,), ("n",), "pointwise")


def embedding(dtype) -> LoopKernel:
    """A row of a packed table."""
    shape = (70, 40)
    encoding = Encoding("panel32i" if dtype == bf16 else "panel32")
    offset, _ = encoding.place(TensorType(shape, dtype), (g, j))
    value = Load(1, offset, f32, (("g", Load(0, i, i64)),))
    part = Pointwise((Axis("i", n), Axis("j", 40)), (Store(2, i * 40 + j, value),))
    params = (
        read(TensorType((n,), i64)), Param(TensorType(shape, dtype), False, encoding),
        written(TensorType((n, 40), f32)),
    )  # fmt: skip
    return LoopKernel(params, (part,), ("n",), "pointwise")


def element_guard() -> LoopKernel:
    """A guard that changes along the swept axis, and two parts side by side."""
    guard = Load(1, i, i32)
    first = Pointwise((Axis("i", n),), (Store(2, i, Load(0, i, f32), guard=guard),))
    scaled = Apply("mul", (Load(0, i, f32), Index(i + n, f32)), f32)
    second = Pointwise((Axis("one", 1), Axis("i", n)), (Store(3, n - 1 - i, scaled),))
    t = TensorType((n,), f32)
    params = (read(t), read(TensorType((n,), i32)), written(t), written(t))
    return LoopKernel(params, (first, second), ("n",), "pointwise")


def long_axis() -> LoopKernel:
    """An axis longer than one block, with minimum, maximum and division in its index."""
    at = maximum(i - 3, 0)
    value = Apply("add", (Load(0, at, f32), Load(0, (i * 7) // 9, f32)), f32)
    part = Pointwise((Axis("i", n),), (Store(1, i, value),))
    t = TensorType((n,), f32)
    return LoopKernel((read(t), written(t)), (part,), ("n",), "pointwise")


def scalar() -> LoopKernel:
    part = Pointwise((), (Store(1, 0, Apply("exp", (Load(0, 0, f64),), f64)),))
    t = TensorType((), f64)
    return LoopKernel((read(t), written(t)), (part,), (), "pointwise")


@pytest.fixture(scope="module")
def library():
    kernels = {f"{a}_to_{b}": copy(a, b) for a, b in COPIES}
    kernels |= {"rotate": rotate(), "hard_select": hard_select(), "append": append()}
    kernels |= {f"embedding_{d}": embedding(d) for d in (bf16, f32)}
    kernels |= {"element_guard": element_guard(), "long_axis": long_axis(), "scalar": scalar()}
    return Library(kernels)


SIZES = (0, 1, 3, 17, 64)


@pytest.mark.parametrize("size", SIZES)
def test_selects_become_loops_that_agree(library, rng, size):
    x = rng.standard_normal((size, 48)).astype(np.float32)
    library.check("rotate", [x], {"n": size}, rtol=1e-6)
    x = rng.standard_normal((size + 2) // 3).astype(np.float32)
    library.check("hard_select", [x], {"n": size}, exact=True)


def test_a_cut_leaves_no_condition_in_the_loop(library):
    source = library.sources["rotate"]
    assert "?" not in source
    assert source.count("for (int64_t v_j") == 6  # two rows' kinds, three stretches each


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_scattered_to_slots(library, rng, size):
    x = rng.standard_normal((size, 24)).astype(np.float32)
    slots = rng.permutation(50).astype(np.int32)
    slots = np.resize(slots, size) if size <= 50 else np.full(size, -1, np.int32)
    if size > 1:
        slots[1] = -1
    (out,) = library.check("append", [x, slots], {"n": size}, rtol=4e-3)
    untouched = np.setdiff1d(np.arange(50), slots)
    assert (out[untouched] == 77).all()


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_rows_of_a_packed_table(library, rng, dtype):
    table = rng.standard_normal((70, 40)).astype(dtype.numpy)
    ids = np.array([0, 69, 33, 31, 32, 69], np.int64)
    out = np.zeros((len(ids), 40), np.float32)
    library.run(f"embedding_{dtype}", [ids, table, out], {"n": len(ids)})
    np.testing.assert_array_equal(out, table[ids].astype(np.float32))


@pytest.mark.parametrize("size", [*SIZES, 10_001])
def test_parts_side_by_side_and_long_axes(library, rng, size):
    x = rng.standard_normal(size).astype(np.float32)
    guard = rng.integers(-2, 2, size).astype(np.int32)
    library.check("element_guard", [x, guard], {"n": size})
    library.check("long_axis", [x], {"n": size})


def test_a_kernel_without_axes(library):
    library.check("scalar", [np.array(1.5)], {})


@pytest.mark.parametrize(("source", "dtype"), COPIES)
def test_conversions(library, rng, source, dtype):
    x = rng.uniform(-100, 100, 333)
    if source == bool_:
        x = x > 0
    if dtype == u8:
        x = np.abs(x)
    x = x.astype(source.numpy)
    out = np.zeros(333, dtype.numpy)
    library.run(f"{source}_to_{dtype}", [x, out], {"n": 333})
    np.testing.assert_array_equal(
        out, x.astype(np.float32 if dtype != bf16 else x.dtype).astype(dtype.numpy)
    )


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_every_half_widens_and_comes_back(library, dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        want = every.astype(np.float32)
    nan, count = np.isnan(want), {"n": len(every)}
    there, back = np.zeros(len(every), np.float32), np.zeros_like(every)
    library.run(f"{dtype}_to_f32", [every, there], count)
    np.testing.assert_array_equal(there, want)
    library.run(f"f32_to_{dtype}", [there, back], count)
    np.testing.assert_array_equal(back.view(np.uint16)[~nan], every.view(np.uint16)[~nan])
    with np.errstate(invalid="ignore"):
        assert np.isnan(back[nan].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_narrowing_rounds_half_to_even(library, rng, dtype):
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | 0x8000  # half way between two bf16
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        between = halves[:-1] / 2 + halves[1:] / 2  # half way between two f16
        x = np.concatenate([bits.view(np.float32), ties.view(np.float32), between])
        want = x.astype(dtype.numpy)
    got = np.zeros(len(x), dtype.numpy)
    library.run(f"f32_to_{dtype}", [x, got], {"n": len(x)})
    nan = np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
    with np.errstate(invalid="ignore"):
        assert np.isnan(got[nan].astype(np.float32)).all()


def test_ml_dtypes_is_what_bf16_means():
    assert bf16.numpy == np.dtype(ml_dtypes.bfloat16)
