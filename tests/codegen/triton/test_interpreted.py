"""Every template, interpreted or on the GPU, against the NumPy reading of the same loop IR."""

import numpy as np
import pytest

from tilewright.codegen.templates.attention_schedules import AttentionSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.templates.pointwise import PointwiseSchedule
from tilewright.codegen.templates.reduce import ReduceSchedule
from tilewright.codegen.templates.sample import SampleSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f32, f64, i64, u8

from ..combines import BITS, OTHERS, one_of_each
from . import samples
from .harness import Case, check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")


@pytest.mark.parametrize("make", [samples.pointwise, samples.embedding, samples.rope_append])
@pytest.mark.parametrize("t", [1, 7])
def test_pointwise(runner, make, t):
    check(runner, make(t), PointwiseSchedule(64, 1))


def test_pointwise_bf16(runner):
    check(runner, samples.rope_append(4, bf16), PointwiseSchedule(64, 1), 8e-3)


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize(
    "schedule",
    [ReduceSchedule(4, 32, True), ReduceSchedule(1, 32, True), ReduceSchedule(2, 16, False)],
)
def test_norms(runner, name, schedule):
    check(runner, samples.norm(name), schedule)


@pytest.mark.parametrize("schedule", [ReduceSchedule(2, 64, True), ReduceSchedule(1, 16, False)])
def test_reductions(runner, schedule):
    check(runner, samples.reductions(), schedule)


@pytest.mark.parametrize("size", [(3, 0), (0, 0), (0, 5), (1, 1), (5, 33)])
def test_rows_of_nothing_one_and_odd(runner, size):
    t, width = size
    persistent = ReduceSchedule(4, max(1 << (width - 1).bit_length(), 1), True)
    for schedule in (persistent, ReduceSchedule(1, 64, True), ReduceSchedule(2, 16, False)):
        check(runner, samples.sums(t, width), schedule, 8e-3)


@pytest.mark.parametrize("width", [0, 1, 15])
@pytest.mark.parametrize("dtype", [f32, i64, u8], ids=str)
def test_any_combine(runner, dtype, width):
    """In order: as they lie, in one tile, tile after tile, and in pieces of a row."""
    some = {f32: OTHERS, i64: (OTHERS[2], BITS[2]), u8: BITS[:2]}[dtype]
    kernel = one_of_each(dtype, some, 2, width)
    rng = np.random.default_rng(5)
    row = rng.integers(0, 9, (2, width)) * rng.integers(0, 2, (2, width))
    x = row / 20 * (-1) ** row if dtype == f32 else row - 2 * (dtype == i64)
    outputs = [np.zeros(2, p.type.dtype.numpy) for p in kernel.params[1:]]
    case = Case(kernel, [x.astype(dtype.numpy), *outputs])
    persistent = ReduceSchedule(2, max(1 << (width - 1).bit_length(), 1), True)
    schedules = [persistent, ReduceSchedule(1, 4, False)]
    if width == 15:
        schedules += [ReduceSchedule(1, 8, True, splits=3)]
    for schedule in schedules:
        check(runner, case, schedule)


def test_columns(runner):
    check(runner, samples.columns(), ReduceSchedule(16, 16, False))


@pytest.mark.parametrize(
    "schedule",
    [
        GemvSchedule(1, 16, 2),
        GemvSchedule(4, 32, 1, rows=2, fold=4),
        GemvSchedule(16, 64, 4, rows=8),
    ],
)
@pytest.mark.parametrize("m", [1, 3])
def test_gemv(runner, schedule, m):
    check(runner, samples.linear(m), schedule)
    check(runner, samples.gated(m), schedule)


@pytest.mark.parametrize("schedule", [GemvSchedule(8, 8, 2), GemvSchedule(8, 32, 3, 4, 4, 2)])
def test_gemv_over_many_tiles(runner, schedule):
    check(runner, samples.linear(5, 8, 600), schedule)


DOTS = [
    DotSchedule(16, 16, 16, True),
    DotSchedule(16, 32, 32, False),
    DotSchedule(16, 16, 16, True, materialize=True),
    DotSchedule(16, 32, 16, False, materialize=True, split_k=3),
]


@pytest.mark.parametrize("schedule", DOTS)
@pytest.mark.parametrize("m", [2, 19])
def test_dot(runner, schedule, m):
    check(runner, samples.linear(m), schedule)
    check(runner, samples.gated(m), schedule)


def test_dot_bf16(runner):
    check(runner, samples.linear(5, dtype=bf16), DOTS[0], 8e-3)
    check(runner, samples.linear(5, dtype=bf16), DOTS[2], 8e-3)


@pytest.mark.parametrize(
    "schedule", [DOTS[0], DOTS[1], GemvSchedule(4, 8, 1), GemvSchedule(4, 8, 1, 4, 4, 2)]
)
def test_batched_product_of_activations(runner, schedule):
    check(runner, samples.scores(), schedule)


BATCHES = [([1], [9]), ([1, 1, 1], [4, 17, 1]), ([5, 1, 9], [5, 12, 20]), ([3, 0, 2], [11, 4, 2])]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "schedule",
    [
        AttentionSchedule(1, 16),
        AttentionSchedule(4, 16),
        AttentionSchedule(16, 16),
        AttentionSchedule(1, 4),
    ],
)
def test_attention(runner, batch, schedule):
    if runner.is_card and schedule.keys < 16:
        pytest.skip("a matrix unit takes 16 keys or more")
    check(runner, samples.attention(*batch), schedule)


# programs that share the keys of some sequences and not of others, in tiles of few and many queries
SHARED = {
    AttentionSchedule(1, 128, 100): ([1, 1, 1], [256, 1, 1030]),
    AttentionSchedule(2, 64, 9): ([1, 3], [513, 9]),
    AttentionSchedule(16, 128, 40): ([1, 0, 19], [600, 40, 1100]),
}


@pytest.mark.parametrize("schedule", SHARED)
def test_attention_whose_keys_programs_share(runner, schedule):
    check(runner, samples.attention(*SHARED[schedule], page=32), schedule)
    odd = {"window": 700, "softcap": 2.0, "heads": 3, "groups": 1, "v_size": 5}
    check(runner, samples.attention(*SHARED[schedule], page=24, **odd), schedule)


def test_dense_attention_whose_keys_programs_share(runner):
    case = samples.dense_attention(3, 700, mask=(("t",), f32), softcap=3.0)
    check(runner, case, AttentionSchedule(2, 64, 30))


@pytest.mark.parametrize("count", [1, 256, 257])
def test_a_program_finds_its_sequence_among_many(runner, count):
    lengths = [int(i % 40 == 1) for i in range(count - 1)] + [20]
    contexts = [20 + i % 3 for i in range(count)]
    check(
        runner, samples.attention(lengths, contexts, heads=1, groups=1), AttentionSchedule(16, 32)
    )


@pytest.mark.parametrize("schedule", [AttentionSchedule(1, 16, 2), AttentionSchedule(4, 16)])
def test_attention_variants(runner, schedule):
    batch = ([3, 1, 2], [3, 12, 40])
    check(runner, samples.attention(*batch, window=6, softcap=2.0), schedule)
    check(runner, samples.attention(*batch, heads=3, groups=3, size=6), schedule)
    check(runner, samples.attention(*batch, heads=6, groups=2), schedule)
    check(runner, samples.attention(*batch, size=24, v_size=10), schedule)
    check(runner, samples.attention(*batch, size=4, v_size=20, v_dtype=bf16), schedule)
    check(runner, samples.attention(*batch, dtype=bf16), schedule, 8e-3)


@pytest.mark.parametrize("name", samples.DENSE)
def test_dense_attention(runner, name):
    given = samples.DENSE[name]
    tolerance = {"bf16": 8e-3, "wide_bf16": 8e-3, "f16": 1e-3}.get(name, 1e-5)
    sizes = samples.DENSE_SIZES if name == "causal" else [(5, 9), (9, 5)]
    for size in sizes:
        check(runner, samples.dense_attention(*size, **given), AttentionSchedule(4, 16), tolerance)
    case = samples.dense_attention(18, 50, **given)
    check(runner, case, AttentionSchedule(16, 32, 2), tolerance)


def test_keys_that_fill_their_tiles_are_walked_in_one_loop(runner):
    b = Builder()
    q, k, v = (b.input(name, (1, 2, count, 8)) for name, count in zip("qkv", (5, 32, 32)))
    case = samples.make(b, [b.attention(q, k, v, scale=0.3)], {})
    for keys, loops in ((16, 1), (64, 2)):
        schedule = AttentionSchedule(64, keys)
        (launch,) = emit_kernel(case.kernel, "kernel", schedule, get_target("sm_90"))
        assert launch.source.count("for number in") == loops
        check(runner, case, schedule)


def test_sample(runner):
    check(runner, samples.sample(), SampleSchedule(64, 128, 1))


def test_rows_without_a_likeliest_token(runner):
    case = samples.sample_without_numbers()
    check(runner, case, SampleSchedule(64, 128, 1))
    (out,) = case.written()
    chosen = case.expected()[out]
    spoiled = 3 * len(chosen) // 4
    assert (chosen[:spoiled] == -1).all()
    assert (chosen[spoiled:] >= 0).all()


@pytest.mark.parametrize("splits", [3, 11])
def test_rows_cut_into_pieces(runner, splits):
    check(runner, samples.reductions(), ReduceSchedule(1, 16, True, splits=splits))


@pytest.mark.parametrize("dtype", [f32, f64])
def test_floor_division_and_remainder_are_exact(runner, dtype):
    case = samples.divisions(dtype)
    got = runner.run(case, PointwiseSchedule(32, 1))
    x, y = (np.asarray(a, dtype.numpy) for a in case.arrays[:2])
    with np.errstate(all="ignore"):
        wanted = x // y, np.mod(x, y)
    for number, want in zip(case.written(), wanted, strict=True):
        np.testing.assert_array_equal(got[number], want)


def test_divisions_of_the_module_round_as_ieee_says():
    case, _ = samples.functions()
    (launch,) = emit_kernel(case.kernel, "kernel", PointwiseSchedule(), get_target("sm_90"))
    body = launch.source[launch.source.index("def kernel(") :]
    approximate = [line for line in body.splitlines() if " / " in line or "tl.sqrt(" in line]
    # what is left is the sigmoid, alone and in silu
    assert approximate
    assert all("1.0 / (1.0 + tl.exp(" in line for line in approximate)
    assert body.count("tl.div_rn(") == 2  # div, reciprocal
    assert body.count("tl.sqrt_rn(") == 1


def test_every_function(runner, slack):
    case, names = samples.functions()
    got, want = runner.run(case, PointwiseSchedule(32, 1)), case.expected()
    for name, number in zip(names, case.written()):  # what is left are the records of faults
        # float32 arithmetic of a float64 reference: a few units in the last place, and an absolute
        # error where large terms cancel
        bound = 2e-6 * slack
        rounded = 1e-2 if name == "to bf16" else bound
        np.testing.assert_allclose(
            got[number], want[number], rtol=rounded, atol=bound, err_msg=name
        )


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (samples.faulty, PointwiseSchedule(64, 1)),
        (samples.wide_rows, PointwiseSchedule(64, 1)),
        (samples.wide_rows, PointwiseSchedule(256, 1)),
        (samples.faulty_rows, ReduceSchedule(2, 64, True)),
        (samples.faulty_rows, ReduceSchedule(4, 16, False)),
        (samples.faulty_product, GemvSchedule(4, 32)),
        (samples.faulty_product, GemvSchedule(4, 32, rows=4)),
        (samples.faulty_product, DotSchedule(16, 32, 16)),
    ],
)
def test_faults_are_recorded_and_nothing_outside_is_read(runner, make, schedule):
    case = make()
    check(runner, case, schedule)
    records = runner.run(case, schedule)[case.kernel.records].reshape(-1, 2)
    assert records[:, 0].any()
    fine = make(index=(0, 3, 1, 4, 2))
    records = runner.run(fine, schedule)[fine.kernel.records].reshape(-1, 2)
    # no lane outside the axes reports what it holds; the zero divisor is in every `faulty`
    assert records[:, 0].tolist() == [0, 1] * (make is samples.faulty) + [0] * (
        make is not samples.faulty
    )
