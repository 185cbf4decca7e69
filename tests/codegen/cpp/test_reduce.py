"""Reduce kernels: every reduction, several at once, NaN, infinities, empty and long rows."""

import numpy as np
import pytest

from tilewright.codegen.loops import (
    LARGEST,
    SUM,
    Apply,
    Axis,
    Cast,
    Const,
    Load,
    LoopKernel,
    Param,
    Reduce,
    Reduction,
    Ref,
    Store,
)  # fmt: skip
from tilewright.ir.dim import symbol
from tilewright.ir.types import TensorType, bool_, f32, f64, i32, i64, u8

from ..combines import BITS, OTHERS, named, one_of_each
from ..triton import samples
from .harness import Library

n, w, i, r = (symbol(s) for s in ("n", "w", "i", "r"))


FLOATS = named("sum", "max", "min", "prod", "argmax", "argmin")


def softmax() -> LoopKernel:
    x = Load(0, i * w + r, f32)
    top = Reduction("red0", LARGEST, x)
    e = Apply("exp", (Apply("sub", (x, Ref("red0", f32)), f32),), f32)
    total = Reduction("red1", SUM, e)
    store = Store(1, i * w + r, Apply("div", (e, Ref("red1", f32)), f32))
    t = TensorType((n, w), f32)
    part = Reduce((Axis("i", n),), Axis("r", w), ((top,), (total,)), (), (store,))
    return LoopKernel((Param(t, False), Param(t, True)), (part,), ("n", "w"), "reduce")


@pytest.fixture(scope="module")
def library():
    return Library(
        {
            "of_f32": one_of_each(f32, FLOATS),
            "of_f64": one_of_each(f64, FLOATS),
            "of_i32": one_of_each(i32, FLOATS),
            "of_bool": one_of_each(bool_, named("any", "all", "argmax", "max")),
            "others_of_f32": one_of_each(f32, OTHERS),
            "others_of_i64": one_of_each(i64, (*OTHERS, *BITS)),
            "others_of_u8": one_of_each(u8, BITS[:2]),
            "softmax": softmax(),
            "mean_square": mean_square(),
            "in_memory": sums(window(1.0).args[0]),
            "computed": sums(window(1.0), Load(0, r * n + i, f32), Load(0, i * (w + 3), f32)),
            "side_by_side": sums(Load(0, r * n + i, f32), Load(0, i, f32)),
            **{k: c.kernel for k, c in cases().items()},
        }
    )


def mean_square() -> LoopKernel:
    """No outer axis, and a value converted on the way."""
    x = Cast(Load(0, r, i32), f32)
    square = Reduction("red0", SUM, Apply("mul", (x, x), f32))
    mean = Apply("mul", (Ref("red0", f32), Const(0.5, f32)), f32)
    params = (Param(TensorType((w,), i32), False), Param(TensorType((), f32), True))
    part = Reduce((), Axis("r", w), ((square,),), (Store(1, 0, mean),), ())
    return LoopKernel(params, (part,), ("w",), "reduce")


def sums(*values) -> LoopKernel:
    """A sum over r of each value, of which parameter 0 has n rows of w + 3."""
    phase = tuple(Reduction(f"red{k}", SUM, value) for k, value in enumerate(values))
    stores = tuple(Store(1 + k, i, Ref(p.name, p.dtype)) for k, p in enumerate(phase))
    params = [Param(TensorType((n, w + 3), f32), False)]
    params += [Param(TensorType((n,), f32), True) for _ in values]
    part = Reduce((Axis("i", n),), Axis("r", w), (phase,), stores, ())
    return LoopKernel(tuple(params), (part,), ("n", "w"), "reduce")


def window(factor: float) -> Apply:
    """The last w of each row times a number."""
    return Apply("mul", (Load(0, i * (w + 3) + r + 3, f32), Const(factor, f32)), f32)


def cases():
    return {
        **{name: samples.norm(name) for name in ("rms_norm", "layer_norm")},
        "many": samples.reductions(),
        "columns": samples.columns(),
    }


@pytest.mark.parametrize("width", [1, 5, 64, 511, 513, 3000])
@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_every_reduction(library, rng, rows, width):
    x = rng.standard_normal((rows, width))
    sizes = {"n": rows, "w": width}
    library.check("of_f32", [x.astype(np.float32)], sizes, rtol=1e-5, atol=1e-4)
    library.check("of_f64", [x], sizes, rtol=1e-12, atol=1e-12)
    library.check(
        "of_i32", [rng.integers(-9, 9, (rows, width)).astype(np.int32)], sizes, exact=True
    )
    library.check("of_bool", [rng.integers(0, 2, (rows, width)).astype(bool)], sizes, exact=True)
    library.check("softmax", [x.astype(np.float32)], sizes)
    # products of 1 + x: near enough to 1 that those of a long row neither vanish nor overflow
    small = x * np.sqrt(0.1 / width)
    library.check("others_of_f32", [small.astype(np.float32)], sizes, rtol=1e-4, atol=1e-4)
    whole = rng.integers(-9, 9, (rows, width))
    library.check("others_of_i64", [whole], sizes, exact=True)
    library.check("others_of_u8", [whole.astype(np.uint8)], sizes, exact=True)


def test_any_combine_of_long_rows_and_of_none(library, rng):
    """Chunks of a row are combined in order, whoever made them; over nothing it is the identity."""
    x = np.zeros((1, 50_001), np.float32)
    x[0, [20_000, 41_000]] = 3, -3
    got = library.check("others_of_f32", [x], {"n": 1, "w": x.size})
    assert [g.item() for g in got] == [-9, 3, 20_000]
    x[0, 30_000] = np.nan
    assert library.check("others_of_f32", [x], {"n": 1, "w": x.size})[2].item() == 20_000
    got = library.check("others_of_i64", [np.zeros((2, 0), np.int64)], {"n": 2, "w": 0})
    assert [g[0] for g in got] == [0, 0, 0, 0, 0, -1]


def test_nan_and_infinities(library):
    inf, nan = np.inf, np.nan
    x = np.array([[1, nan, 3], [nan, nan, 1], [inf, 1, inf], [-inf, -inf, -inf], [2, 2, -inf]])
    for name, dtype in (("of_f32", np.float32), ("of_f64", np.float64)):
        got = library.check(name, [x.astype(dtype)], {"n": 5, "w": 3})
        np.testing.assert_array_equal(got[4], [1, 0, 0, 0, 0])
        np.testing.assert_array_equal(got[5], [1, 0, 1, 0, 2])
        np.testing.assert_array_equal(got[1], [nan, nan, inf, -inf, 2])


def test_first_of_equals_across_stretches(library):
    x = np.zeros((2, 2000), np.float32)
    x[0, [700, 1500]] = 1
    x[1, [600, 1900]] = np.nan
    got = library.check("of_f32", [x], {"n": 2, "w": 2000})
    np.testing.assert_array_equal(got[4], [700, 600])


def test_an_empty_axis(library):
    with np.errstate(all="ignore"):
        outputs = [np.full(2, 7, p.type.dtype.numpy) for p in library.kernels["of_f32"].params[1:]]
        library.run("of_f32", [np.zeros((2, 0), np.float32), *outputs], {"n": 2, "w": 0})
    assert [o[0] for o in outputs[:4]] == [0, -np.inf, np.inf, 1]


def test_long_sums_are_accurate(library, rng):
    x = (rng.standard_normal((1, 1_000_003)) + 1).astype(np.float32)
    outputs = [np.zeros(1, p.type.dtype.numpy) for p in library.kernels["of_f32"].params[1:]]
    library.run("of_f32", [x, *outputs], {"n": 1, "w": x.size})
    assert abs(outputs[0][0] / x.astype(np.float64).sum() - 1) < 1e-6
    assert outputs[4][0] == x.argmax()


@pytest.mark.parametrize("threads", [2, 3])
def test_one_long_row_is_shared_among_threads_with_the_same_bits(library, rng, threads):
    for width in (40_000, 300_001):
        x = rng.standard_normal((1, width)).astype(np.float32)
        results = []
        for count in (1, threads):
            outputs = [
                np.zeros(1, p.type.dtype.numpy) for p in library.kernels["of_f32"].params[1:]
            ]
            library.run("of_f32", [x, *outputs], {"n": 1, "w": width}, count)
            results.append([o.tobytes() for o in outputs])
        assert results[0] == results[1]


def test_lowered_groups(library):
    for name, case in cases().items():
        library.check_case(name, case)
    library.check("mean_square", [np.arange(7, dtype=np.int32)], {"w": 7})


@pytest.mark.parametrize("width", [0, 1, 513, 40_000])
def test_what_lies_side_by_side_is_reduced_where_it_lies(library, rng, width):
    """Not copied first: memory would wait while a copy is summed. The same bits either way."""
    assert "buffer" not in library.sources["in_memory"]
    assert library.sources["computed"].count("alignas(64) float buffer") == 3
    x = rng.standard_normal((3, width + 3)).astype(np.float32)
    sizes = {"n": 3, "w": width}
    (here,) = library.check("in_memory", [x], sizes, atol=1e-2)
    there, *_ = library.check("computed", [x], sizes, rtol=1e-4, atol=1e-2)
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("width", [0, 1, 256, 257, 700])
@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_rows_that_lie_side_by_side_are_reduced_together(library, rng, rows, width):
    assert "TwSum" not in library.sources["side_by_side"]
    x = rng.standard_normal((rows, width + 3)).astype(np.float32)
    library.check("side_by_side", [x], {"n": rows, "w": width}, rtol=1e-5, atol=1e-3)
