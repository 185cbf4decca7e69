"""Contractions: every path through the tiles, prologues, epilogues, and bits that never change."""

import numpy as np
import pytest

from tilewright.codegen.encodings import streamed
from tilewright.codegen.loops import (
    SUM,
    Apply,
    Axis,
    Cast,
    Const,
    Contract,
    Load,
    LoopKernel,
    Param,
    Reduction,
    Ref,
    Select,
    Store,
)  # fmt: skip
from tilewright.ir.dim import symbol
from tilewright.ir.encoding import ROWS, Encoding
from tilewright.ir.target import cpu
from tilewright.ir.types import TensorType, bf16, f16, f32, f64, i8, i32

from ..triton import samples
from .harness import Library

t, b, m, n, k = (symbol(s) for s in ("t", "b", "m", "n", "k"))


def linear(N: int, K: int, dtype, *, weights=1, packed=True, norm=False, out=f32) -> LoopKernel:
    """y = x @ w^T, scaled by rms(x) with `norm`, plus bias and residual; two weights multiply."""
    encoding = streamed((N, K), dtype, cpu()) if packed else ROWS
    params = [Param(TensorType((t, K), f32), False)]
    params += [Param(TensorType((N, K), dtype), False, encoding)] * weights
    params.append(Param(TensorType((N,), f32), False))
    params.append(Param(TensorType((t, N), out), True))
    x = Load(0, m * K + k, f32)
    ws = tuple(Load(1 + i, n * K + k, f32) for i in range(weights))
    stats = (Reduction("stat0", SUM, Apply("mul", (x, x), f32)),) if norm else ()
    y = Ref("acc0", f32)
    if weights == 2:
        gate = Apply("mul", (y, Apply("sigmoid", (y,), f32)), f32)
        y = Apply("mul", (gate, Ref("acc1", f32)), f32)
    if norm:
        mean = Apply("mul", (Ref("stat0", f32), Const(1 / K, f32)), f32)
        scale = Apply("rsqrt", (Apply("add", (mean, Const(1e-5, f32)), f32),), f32)
        y = Apply("mul", (y, scale), f32)
    y = Apply("add", (y, Load(weights + 1, n, f32)), f32)
    part = Contract(
        (), Axis("m", t), Axis("n", N), Axis("k", K), x, ws, stats,
        (Store(weights + 2, m * N + n, y),), f32, dtype,
    )  # fmt: skip
    return LoopKernel(tuple(params), (part,), ("t",), "contract")


def batched(x_dtype, w_dtype, *, transposed: bool) -> LoopKernel:
    """y[b] = x[b] @ w[b]: [b, m, k] x [b, n, k] (or [b, k, n]), all sizes symbolic."""
    wide = f32 if x_dtype in (bf16, f16) else x_dtype
    w_at = (
        (b * symbol("K") + k) * symbol("N") + n
        if transposed
        else (b * symbol("N") + n) * symbol("K") + k
    )
    x = Load(0, (b * symbol("M") + m) * symbol("K") + k, wide)
    w = Load(1, w_at, wide)
    acc = i32 if x_dtype == i8 else wide
    store = Store(2, (b * symbol("M") + m) * symbol("N") + n, Ref("acc0", acc))
    part = Contract(
        (Axis("b", symbol("B")),), Axis("m", symbol("M")), Axis("n", symbol("N")),
        Axis("k", symbol("K")), x, (w,), (), (store,), x_dtype, w_dtype,
    )  # fmt: skip
    B, M, N, K = (symbol(s) for s in "BMNK")
    params = (
        Param(TensorType((B, M, K), x_dtype), False),
        Param(TensorType((B, K, N) if transposed else (B, N, K), w_dtype), False),
        Param(TensorType((B, M, N), acc), True),
    )
    return LoopKernel(params, (part,), ("B", "K", "M", "N"), "contract")


def sliced() -> LoopKernel:
    """Rows 64..128 of a packed weight (in place), and rows 5.. of it through arithmetic."""
    K = 40
    params = (
        Param(TensorType((t, K), f32), False),
        Param(TensorType((160, K), bf16), False, Encoding("panel32i")),
        Param(TensorType((t, 64), f32), True),
    )  # fmt: skip
    part = Contract(
        (), Axis("m", t), Axis("n", 64), Axis("k", K), Load(0, m * K + k, f32),
        (Load(1, (n + 64) * K + k, f32),), (), (Store(2, m * 64 + n, Ref("acc0", f32)),), f32, bf16,
    )  # fmt: skip
    return LoopKernel(params, (part,), ("t",), "contract")


def scaled_weight() -> LoopKernel:
    """A packed weight used through arithmetic, off a panel's edge, cut in two along k."""
    K = 40
    w = Apply("mul", (Load(1, (n + 5) * K + k, f32), Const(0.5, f32)), f32)
    w = Select(k, 11, w, Cast(w, bf16), f32)
    params = (
        Param(TensorType((t, K), f32), False),
        Param(TensorType((160, K), bf16), False, Encoding("panel32i")),
        Param(TensorType((t, 70), f32), True),
    )  # fmt: skip
    part = Contract(
        (), Axis("m", t), Axis("n", 70), Axis("k", K), Load(0, m * K + k, f32), (w,), (),
        (Store(2, m * 70 + n, Ref("acc0", f32)),), f32, bf16,
    )  # fmt: skip
    return LoopKernel(params, (part,), ("t",), "contract")


def heads() -> LoopKernel:
    """An epilogue that stores [t, 3, 64] as [3, t, 64]."""
    N, K = 192, 48
    store = Store(2, ((n // 64) * t + m) * 64 + n % 64, Ref("acc0", f32))
    params = (
        Param(TensorType((t, K), f32), False),
        Param(TensorType((N, K), f32), False, Encoding("panel32")),
        Param(TensorType((3, t, 64), f32), True),
    )  # fmt: skip
    part = Contract(
        (), Axis("m", t), Axis("n", N), Axis("k", K), Load(0, m * K + k, f32),
        (Load(1, n * K + k, f32),), (), (store,), f32, f32,
    )  # fmt: skip
    return LoopKernel(params, (part,), ("t",), "contract")


def cases():
    return {
        "lowered": samples.linear(7), "lowered_wide": samples.linear(3, n=100, k=600),
        "gated": samples.gated(30, 100, 300), "scores": samples.scores(19),
    }  # fmt: skip


@pytest.fixture(scope="module")
def library():
    kernels = {
        "plain_f32": linear(100, 70, f32, packed=False),
        "panel_f32": linear(100, 300, f32, norm=True),
        "panel_bf16": linear(100, 600, bf16, norm=True),
        "panel_f16": linear(96, 257, f16, out=bf16),
        "two": linear(136, 520, bf16, weights=2, norm=True),
        "one_column": linear(1, 33, f32), "narrow": linear(7, 300, f32),
        "narrow_two": linear(3, 270, f32, weights=2, norm=True), "half_panel": linear(40, 70, f32),
        "sliced": sliced(), "scaled_weight": scaled_weight(), "heads": heads(),
    }  # fmt: skip
    for name, x, w in (("f32", f32, f32), ("f64", f64, f64), ("i8", i8, i8), ("bf16", bf16, bf16)):
        kernels[f"batched_{name}"] = batched(x, w, transposed=False)
        kernels[f"batched_{name}_t"] = batched(x, w, transposed=True)
    kernels |= {name: case.kernel for name, case in cases().items()}
    return Library(kernels)


def operands(library, name, rng, rows, scale=1.0):
    kernel = library.kernels[name]
    arrays = []
    for param in kernel.params:
        if not param.is_written:
            shape = [rows if d == t else d for d in param.type.shape]
            arrays.append((rng.standard_normal(shape) * scale).astype(param.type.dtype.numpy))
    return arrays


LINEAR = ("plain_f32", "panel_f32", "panel_bf16", "panel_f16", "two", "one_column", "narrow",
          "narrow_two", "half_panel", "sliced", "scaled_weight", "heads")  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 12, 13, 25, 64, 241, 300])
@pytest.mark.parametrize("name", LINEAR)
def test_against_the_reference(library, rng, name, rows):
    arrays = operands(library, name, rng, rows)
    tolerance = {"panel_f16": 1e-2, "two": 1e-4}.get(name, 2e-5)
    library.check(name, arrays, {"t": rows}, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("name", LINEAR)
def test_small_numbers_keep_their_digits(library, rng, name):
    arrays = operands(library, name, rng, 5, 1e-3)
    library.check(name, arrays, {"t": 5}, rtol=1e-2 if name == "panel_f16" else 1e-4, atol=1e-8)


@pytest.mark.parametrize("name", LINEAR)
def test_a_row_has_the_same_bits_whatever_is_beside_it(library, rng, name):
    kernel = library.kernels[name]
    arrays = operands(library, name, rng, 300)
    (shape,) = [p.type.shape for p in kernel.params if p.is_written]
    whole = None
    for first, rows in (
        (0, 300),
        (0, 1),
        (7, 2),
        (7, 5),
        (40, 12),
        (239, 13),
        (290, 10),
        (100, 100),
    ):
        given = [a[first : first + rows] if i == 0 else a for i, a in enumerate(arrays)]
        out = np.zeros([rows if d == t else d for d in shape], kernel.params[-1].type.dtype.numpy)
        library.run(name, [*given, out], {"t": rows})
        axis = shape.index(t)
        if whole is None:
            whole = out
        part = np.take(whole, range(first, first + rows), axis)
        assert part.tobytes() == out.tobytes()


def test_nan_and_infinity_stay_in_their_rows_and_columns(library, rng):
    x, w, bias = operands(library, "plain_f32", rng, 20)
    x[3, 5], x[4, 0], w[7, 7] = np.nan, np.inf, np.nan
    (out,) = library.check("plain_f32", [x, w, bias], {"t": 20}, rtol=1e-4, atol=1e-4)
    assert np.isnan(out[3]).all()
    assert np.isnan(out[:, 7]).all()
    assert np.isfinite(out[5, 8])


@pytest.mark.parametrize("name", ["plain_f32", "narrow", "panel_bf16"])
def test_numbers_below_normal_ones_move_sums_by_less_than_the_least_normal(library, rng, name):
    """They may be 0 inside products, where they take a hundred times as long, and only there."""
    tiny, rows = np.float32(1e-40), 30
    x, *others, bias = operands(library, name, rng, rows)
    others[0][::2] *= others[0].dtype.type(tiny)
    bias[::3] *= tiny
    x[:, 1] = tiny
    library.check(name, [x, *others, bias], {"t": rows}, rtol=2e-5, atol=4e-4)
    silent = [np.full_like(a, a.dtype.type(tiny)) for a in (x, *others, bias)]
    silent[0][:] = 1
    (out,) = library.check(name, silent, {"t": rows}, rtol=0, atol=2.0**-126 * (x.shape[1] + 1))
    assert (silent[-1] * out.dtype.type(0.5))[0] != 0, "this thread computes with them as before"


@pytest.mark.parametrize("suffix", ["", "_t"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bf16"])
def test_batched_products_of_activations(library, rng, dtype, suffix):
    for B, M, N, K in ((1, 1, 1, 1), (1, 3, 40, 5), (5, 17, 33, 70), (2, 30, 9, 300), (0, 2, 2, 2),
                       (2, 3, 5, 0)):  # fmt: skip
        shapes = (B, M, K), (B, K, N) if suffix else (B, N, K)
        kernel = library.kernels[f"batched_{dtype}{suffix}"]
        if dtype == "i8":
            arrays = [rng.integers(-128, 128, s).astype(np.int8) for s in shapes]
            want = np.matmul(
                *(
                    a.astype(np.int32)
                    for a in (arrays[0], arrays[1] if suffix else arrays[1].swapaxes(1, 2))
                )
            )
            out = np.zeros((B, M, N), np.int32)
            library.run(f"batched_{dtype}{suffix}", [*arrays, out], dict(B=B, M=M, N=N, K=K))
            np.testing.assert_array_equal(out, want)
            continue
        arrays = [rng.standard_normal(s).astype(kernel.params[0].type.dtype.numpy) for s in shapes]
        library.check(
            f"batched_{dtype}{suffix}", arrays, dict(B=B, M=M, N=N, K=K),
            rtol=1e-12 if dtype == "f64" else 1e-5, atol=1e-12 if dtype == "f64" else 1e-4,
        )  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_lowered_groups(library, name):
    library.check_case(name, cases()[name])


def test_packed_weights_are_read_in_place(library):
    for name in ("panel_bf16", "two", "sliced", "heads"):
        assert "PACKED = true" in library.sources[name]
    assert "PACKED = false" in library.sources["scaled_weight"]
