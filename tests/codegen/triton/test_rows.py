"""How rows, columns and transposes are laid over programs, of sizes that fit no tile."""

from math import erf

import numpy as np
import pytest

from tilewright.codegen.elements import index_facts
from tilewright.codegen.loops import Pointwise, Reduce
from tilewright.codegen.merge_axes import with_merged_axes
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.pointwise import PointwiseSchedule, crossing
from tilewright.codegen.templates.reduce import ReduceSchedule, piece_of
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.target import REFERENCE
from tilewright.ir.types import bf16, f32

from . import samples
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")


def turned(shape, perm, dtype=f32, sizes=None, scale=True):
    """A transpose, and what is read as it is written."""
    b = Builder()
    dims = tuple(b.dim(d, 1, 512) if isinstance(d, str) else d for d in shape)
    y = b.transpose(b.input("x", dims, dtype), perm=perm)
    if scale:
        y = b.mul(y, b.input("y", y.shape, dtype))
    return samples.make(b, [y], sizes or {})


@pytest.mark.parametrize("block", [64, 512])
@pytest.mark.parametrize(
    ("shape", "perm", "sizes"),
    [
        (("m", "n"), (1, 0), {"m": 21, "n": 50}),
        ((2, 17, 3, 7), (0, 2, 3, 1), {}),  # channels last: (3, 7) is one axis
        ((2, 19, 3, 16), (0, 2, 3, 1), {}),
        ((3, 4, 20, 18), (2, 0, 3, 1), {}),  # nothing reads along one axis
        ((2, 5, 3, 32), (0, 2, 1, 3), {}),  # runs in another order
        (("b", 7, 4, 64), (2, 1, 0, 3), {"b": 3}),
    ],
)
def test_what_is_read_across_is_turned(runner, block, shape, perm, sizes):
    case = turned(shape, perm, sizes=sizes)
    case.kernel = with_merged_axes(case.kernel)
    check(runner, case, PointwiseSchedule(block, 1))


def test_a_transpose_has_a_side_of_the_tile_along_each_axis():
    for shape, perm in (((64, 96), (1, 0)), ((2, 32, 4, 8), (0, 2, 3, 1))):
        kernel = with_merged_axes(turned(shape, perm, bf16).kernel)
        (_, _, schedule), *_ = choices(kernel, REFERENCE)[1]
        (launch,) = emit_kernel(kernel, "turn", schedule, REFERENCE)
        assert "[:, None]" in launch.source
        assert schedule.block >= 1024
    for shape, perm in (((64, 96), (0, 1)), ((8, 64, 96), (1, 0, 2)), ((64, 3), (1, 0))):
        kernel = with_merged_axes(turned(shape, perm, scale=False).kernel)
        assert crossing(kernel.parts[0], index_facts(kernel)) is None


def test_axes_that_indices_take_together_are_one():
    kernel = samples.pointwise().kernel
    b = Builder()
    x = b.input("x", (2, 3, 4, 5))
    plain = samples.make(b, [b.exp(x)], {}).kernel
    (part,) = with_merged_axes(plain).parts
    assert isinstance(part, Pointwise)
    assert [a.extent for a in part.axes] == [120]
    b = Builder()
    x = b.input("x", (2, 3, 4, 5))
    over = samples.make(b, [b.sum(x, axes=(1,))], {}).kernel
    (part,) = with_merged_axes(over).parts
    assert isinstance(part, Reduce)
    assert [a.extent for a in part.rows] == [2, 20]
    assert with_merged_axes(with_merged_axes(kernel)) == with_merged_axes(kernel)


def across(length, width, batch=None, op="sum", dtype=f32):
    """Reductions over an axis that is not the last."""
    b = Builder()
    shape = (length, width) if batch is None else (batch, length, width)
    x = b.input("x", shape, dtype)
    axis = len(shape) - 2
    if op == "softmax":
        return samples.make(b, [b.softmax(x, axis=axis)], {})
    results = [b.sum(x, axes=(axis,)), b.max(b.neg(x), axes=(axis,)), b.argmax(x, axis=axis)]
    return samples.make(b, results, {})


@pytest.mark.parametrize("splits", [1, 3, 5])
@pytest.mark.parametrize(("length", "width", "batch"), [(40, 20, None), (330, 9, None), (70, 5, 3)])
def test_columns_in_pieces(runner, length, width, batch, splits):
    case = across(length, width, batch)
    check(runner, case, ReduceSchedule(16, 8, False, splits=splits))


@pytest.mark.parametrize(("length", "dtype"), [(333, f32), (250, bf16)])
def test_rows_in_pieces_that_are_not_equal(runner, length, dtype):
    case = samples.reductions(3, length, dtype)
    for schedule in (
        ReduceSchedule(1, 256, True, splits=2),
        ReduceSchedule(1, 64, False, splits=3),
    ):
        check(runner, case, schedule, 8e-3 if dtype == bf16 else 1e-5)


def test_phases_of_rows_in_pieces(runner):
    """Statistics phase by phase, and at the end what is stored along the rows."""
    b = Builder()
    x = b.input("x", (3, 200))
    weights = [b.weight(name, (200,)) for name in "wc"]
    outputs = [b.layer_norm(x, *weights), b.argmax(x, axis=1)]
    check(runner, samples.make(b, outputs, {}), ReduceSchedule(1, 64, True, splits=4))
    b = Builder()
    columns = samples.make(b, [b.softmax(b.input("s", (200, 20)), axis=0)], {})
    check(runner, columns, ReduceSchedule(16, 16, False, splits=5))
    b = Builder()
    x = b.input("x", (3, 200))
    centred = b.sub(x, b.mean(x, axes=(1,), keepdims=True))
    case = samples.make(b, [b.mean(b.mul(centred, centred), axes=(1,))], {})
    check(runner, case, ReduceSchedule(1, 64, True, splits=4))


def test_pieces_cover_a_row():
    for extent in (1, 63, 64, 1000, 16411, 50257):
        for splits in (2, 3, 64, 2112):
            size = piece_of(extent, splits)
            assert size * splits >= extent
            assert extent % splits == 0 or size % 64 == 0


SPECIAL = np.array([0.0, -np.inf, np.inf, np.nan, -3.4e38, 3.4e38, 1.0, -1.0], np.float32)


@pytest.mark.parametrize("schedule", [ReduceSchedule(2, 8, False), ReduceSchedule(1, 4, False)])
def test_largest_and_sum_in_one_sweep(runner, schedule):
    """Of finite rows, of rows with an infinity or a NaN, and of -inf alone."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((12, 29)).astype(np.float32) * 20
    for i, value in enumerate(SPECIAL):
        rows[i, rng.integers(0, 29, 3)] = value
    rows[8], rows[9, :20], rows[10] = -np.inf, -np.inf, -3.4028235e38
    b = Builder()
    s = b.dim("t", 1, 64)
    x = b.input("x", (s, 29))
    top = b.max(x, axes=(1,), keepdims=True)
    total = b.sum(b.exp(b.sub(x, top)), axes=(1,), keepdims=True)
    results = [b.softmax(x), b.reshape(top, shape=(s,)), b.sub(b.sub(x, top), b.log(total))]
    case = samples.make(b, [*results, b.argmax(x, axis=1)], {"t": 12}, {"x": rows})
    with np.errstate(all="ignore"):
        check(runner, case, schedule)
    (launch,) = emit_kernel(case.kernel, "one", schedule, REFERENCE)
    assert launch.source.count("for at in") + launch.source.count("for back in") == 2


@pytest.mark.parametrize("schedule", [ReduceSchedule(2, 32, True), ReduceSchedule(1, 8, False)])
def test_the_norm_of_a_residual_stores_both(runner, schedule):
    b = Builder()
    x, y = (b.input(name, (5, 29), bf16) for name in "xy")
    total = b.add(x, y)
    case = samples.make(b, [total, b.rms_norm(total, b.weight("w", (29,), bf16))], {})
    check(runner, case, schedule, 8e-3)


def test_a_divisor_that_a_row_shares_is_divided_by_once(runner):
    """To a unit in the last place, also where its reciprocal is no normal number."""
    divisors = np.array([1.0, -3.0, 1e-40, 3e38, 0.0, np.inf, np.nan, 7e-39, -0.1], np.float32)
    x = np.array([0.0, 1.0, -2.5, np.inf, np.nan, 3e38, 1e-20, 1e-38, -448.0], np.float32)
    b = Builder()
    x_in, d_in = b.input("x", (9, 9)), b.input("d", (9, 1))
    arrays = {"x": np.tile(x, (9, 1)), "d": divisors[:, None]}
    case = samples.make(b, [b.div(x_in, d_in)], {}, arrays)
    with np.errstate(all="ignore"):
        want = (arrays["x"] / arrays["d"]).ravel()
        got = runner.run(case, PointwiseSchedule(32, 1))[case.written()[0]]
        b = Builder()
        whole = b.sum(b.input("d", (9, 9)), axes=(1,), keepdims=True)
        arrays["d"] = np.pad(arrays["d"], ((0, 0), (4, 4)))
        tiled = samples.make(b, [b.div(b.input("x", (9, 9)), whole)], {}, arrays)
        swept = runner.run(tiled, ReduceSchedule(2, 4, False))[tiled.written()[0]]
    np.testing.assert_allclose(swept, want, rtol=3e-7)
    np.testing.assert_allclose(got, want, rtol=3e-7)


def test_erf_in_single_precision(runner):
    x = np.concatenate([np.linspace(-5, 5, 2001), [np.inf, -np.inf, np.nan, -0.0, 1e-30]])
    b = Builder()
    case = samples.make(b, [b.erf(b.input("x", x.shape))], {}, {"x": x})
    with np.errstate(all="ignore"):
        got = runner.run(case, PointwiseSchedule(1024, 1))[case.written()[0]]
    x = x.astype(np.float32)
    np.testing.assert_allclose(got, [erf(v) for v in x], rtol=6e-7)
    assert np.signbit(got[np.flatnonzero(x == 0)]).tolist() == np.signbit(x[x == 0]).tolist()
