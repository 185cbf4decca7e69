"""The schedules for sm_90 are those that were searched for, and counts of programs follow cores.

Shapes are those of benchmarks/results: Llama-3.1-8B in bf16, SmolLM2-135M, and both in float32.
"""

from dataclasses import replace

import pytest

from tilewright.codegen.cost import Way, compared, scaled
from tilewright.codegen.lower import lower_group
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.attention_schedules import AttentionSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.target import REFERENCE, TARGETS
from tilewright.ir.types import bf16, f32

from . import samples


def kernel(make):
    """The kernel of a graph of `make(b, t)`, where t is the number of rows of x."""
    b = Builder()
    graph = b.graph([make(b, b.dim("t", 1, 8192, hint=1))])
    return lower_group(graph, graph.nodes, {}).kernel


def linear(n, k, dtype=bf16, *, norm=False, gated=False, stacked=False):
    def make(b, t):
        x = b.input("x", (t, k), dtype)
        x = b.rms_norm(x, b.weight("g", (k,), dtype)) if norm else x
        ws = [b.weight(f"w{i}", (n, k), dtype) for i in range(1 + gated)]
        if stacked:
            both = b.weight("both", (2 * n, k), dtype)
            ws = [b.slice(both, axis=0, start=i * n, stop=(i + 1) * n) for i in range(2)]
        if gated:
            return b.gated_linear(x, *ws, activation="silu")
        return b.matmul(x, *ws, transpose_w=True)

    return kernel(make)


def chosen(kernel, target=REFERENCE) -> dict[int, object]:
    """First number of rows of each bucket -> its schedule."""
    return {lo: schedule for lo, _, schedule in choices(kernel, target)[1]}


def one(bn, bk, prefetch, warps):
    return GemvSchedule(bn, bk, prefetch, warps)


def few(bk, prefetch, rows, warps=1):
    return GemvSchedule(4, bk, prefetch, warps, rows, 4)


def thin(bm, bk, stages, split=1, x_before=False):
    return DotSchedule(bm, 64, bk, True, x_before, split, num_warps=4, num_stages=stages)


def tile(bm, bn, bk, warps, stages, split=1, x_before=False):
    return DotSchedule(bm, bn, bk, False, x_before, split, num_warps=warps, num_stages=stages)


def fetched(bn, programs=0, warps=4, stages=4, **more):
    """128 rows of x against bn rows of w, both copied in tiles."""
    made = tile(128, bn, 128 if bn == 64 else 64, warps, stages, **more)
    return replace(made, has_tiles=True, programs=programs)


TALL, WIDE, SQUARE, NARROW = (
    {"bn": 256, "warps": 8, "stages": 3, "programs": 132},
    {"bn": 256, "warps": 8},
    {"bn": 128, "stages": 5},
    {"bn": 64},
)


def rows_of(first, few, some, *many, **more):
    """few: 2 to 16 rows, some: 17 to 64; many: 65 to 128, 129 to 256, 257 to 512, more."""
    tiles = [m if isinstance(m, DotSchedule) else fetched(**m, **more) for m in many]
    return dict(zip((0, 2, 17, 65, 129, 257, 513), (first, few, some, *tiles)))


def plain(first, *many, split=1):
    return rows_of(first, thin(16, 128, 5, split), thin(64, 128, 5, split), *many)


def going_on(bm):
    made = DotSchedule(bm, 128, 128, True, True, num_warps=4, num_stages=4)
    return replace(made, has_tiles=True, programs=132)


EVEN = {"bn": 128, "stages": 3, "programs": 132}
HALVED = tile(128, 64, 128, 8, 4, 2)  # k is cut in two


def single(first, few, most, *tiles):
    """few: up to `most` rows; then up to 64, 128, 256, 512 and more: (bm, bn, pieces of k)."""
    made = [
        tile(bm, bn, 32, *((8, 3) if bm == bn == 128 else (4, 4)), split) for bm, bn, split in tiles
    ]
    return dict(zip((0, 2, most + 1, 65, 129, 257, 513), (first, few, *made)))


EIGHTH, WHOLE = (64, 64, 1), (128, 128, 1)
PIECES, QUARTERS, HALF = (64, 64, 4), (128, 128, 4), (128, 64, 4)


SEARCHED = {
    "qkv": (
        linear(6144, 4096, norm=True),
        rows_of(
            one(2, 4096, 1, 8), thin(16, 256, 4), thin(64, 128, 5, x_before=True),
            NARROW, SQUARE, WIDE, TALL, x_before=True,
        ),
    ),
    "o": (
        linear(4096, 4096),
        plain(one(2, 2048, 1, 8), HALVED, NARROW, SQUARE, TALL, split=2),
    ),
    "down": (
        linear(4096, 14336),
        plain(one(4, 2048, 4, 8), HALVED, NARROW, SQUARE, WIDE, split=2),
    ),
    "head": (
        linear(128256, 4096, norm=True),
        {
            0: one(2, 4096, 1, 8), 2: going_on(16), 17: going_on(64),
            **dict.fromkeys((65, 129, 257), fetched(**WIDE, x_before=True)),
            513: fetched(**TALL, x_before=True),
        },
    ),
    "14336": (linear(14336, 4096), plain(one(2, 4096, 1, 8), SQUARE, WIDE, WIDE, TALL)),
    "960": (linear(960, 576), plain(one(2, 1024, 1, 4), *[NARROW] * 3, TALL)),
    "576": (linear(576, 1536), plain(one(2, 2048, 1, 8), *[NARROW] * 3, EVEN)),
    "49152": (linear(49152, 576), plain(one(2, 1024, 1, 4), SQUARE, WIDE, WIDE, TALL)),
    "gated": (
        linear(14336, 4096, norm=True, gated=True),
        rows_of(
            one(2, 2048, 1, 8), thin(16, 256, 3), thin(64, 128, 4, x_before=True),
            *[{"bn": 128, "warps": 8}] * 4, x_before=True,
        ),
    ),
    "stacked": (
        linear(14336, 4096, norm=True, gated=True, stacked=True),
        rows_of(
            one(2, 2048, 1, 8), thin(16, 256, 3), thin(64, 128, 4, x_before=True),
            *[{"bn": 128, "warps": 8, "programs": 132}] * 2,
            replace(fetched(64, 132, 4, 5, x_before=True), bk=64),
            {"bn": 128, "warps": 8, "stages": 3, "programs": 132}, x_before=True,
        ),
    ),
    "f32 960": (
        linear(960, 576, f32),
        single(one(2, 1024, 1, 4), few(128, 4, 4), 32, *[EIGHTH] * 4, WHOLE),
    ),
    "f32 576": (
        linear(576, 1536, f32),
        single(
            one(2, 2048, 1, 8), few(128, 4, 4), 32, PIECES, PIECES, HALF, PIECES, HALF
        ),
    ),
    "f32 49152": (
        linear(49152, 576, f32),
        single(one(2, 1024, 1, 4), few(128, 2, 4), 16, EIGHTH, *[WHOLE] * 4),
    ),
    "f32 o": (
        linear(4096, 4096, f32),
        single(
            one(2, 2048, 1, 8), few(128, 2, 8), 16, PIECES, QUARTERS, QUARTERS, WHOLE, WHOLE
        ),
    ),
    "f32 down": (
        linear(4096, 14336, f32),
        single(
            one(4, 2048, 4, 8), few(256, 2, 8, 2), 16, PIECES, QUARTERS, QUARTERS, WHOLE, WHOLE
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEARCHED)
def test_what_was_searched_for_is_chosen(name):
    case, schedules = SEARCHED[name]
    assert chosen(case) == schedules


# length -> whether a program holds a row, and into how many pieces few rows, and more, are cut
ROWS = {
    1000: (True, 1, 1), 16384: (True, 1, 1), 16411: (True, 32, 8), 32768: (True, 64, 8),
    128256: (True, 64, 8),
}  # fmt: skip


@pytest.mark.parametrize("length", ROWS)
def test_rows_are_held_in_registers_and_long_ones_shared_out(length):
    rows = kernel(lambda b, t: b.sum(b.input("x", (t, length), f32), axes=(1,)))
    few, *more = chosen(rows).values()
    is_held, *splits = ROWS[length]
    assert few.is_persistent == is_held
    assert [s.splits for s in (few, *more, few)][:2] == splits
    small = chosen(rows, replace(REFERENCE, registers=2 * 512))
    assert [s.block for s in small.values() if s.is_persistent and s.block > 512] == []


@pytest.mark.parametrize(("length", "is_held"), [(16384, True), (32768, True), (32769, False)])
def test_rows_that_are_read_again_are_held_if_a_program_has_the_registers(length, is_held):
    rows = kernel(lambda b, t: b.softmax(b.input("x", (t, length), f32)))
    *few, schedule = chosen(rows).values()
    assert schedule.is_persistent == is_held
    assert (schedule.num_warps == 32) == (length == 32768)
    # where it has not, few rows are cut
    assert [s.splits > 1 for s in few] == [True] * (not is_held)
    half = replace(REFERENCE, max_threads=512)
    assert [*chosen(rows, half).values()][-1].num_warps == 16


def test_few_long_columns_and_rows_are_shared_out():
    def pieces(*shape, axis=0, target=REFERENCE):
        rows = kernel(lambda b, t: b.sum(b.input("x", shape, f32), axes=(axis,)))
        (schedule,) = chosen(rows, target).values()
        return schedule.splits

    assert pieces(4096, 64) == 32
    assert pieces(64, 4096) == 1
    assert pieces(16384, 16384) == 4
    assert pieces(2, 16384, 16384, axis=1) == 2
    assert pieces(12800, 4096, target=TARGETS["gfx942"]) > pieces(12800, 4096) > 1
    assert pieces(1 << 28) == 2048


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.is_gpu], ids=lambda t: t.name)
def test_rows_and_columns_of_any_size_have_a_schedule_that_fits(target):
    def softmax(shape, axis):
        return kernel(lambda b, t: b.softmax(b.input("x", shape, f32), axis=axis))

    def total(shape, axis):
        return kernel(lambda b, t: b.sum(b.input("x", shape, f32), axes=(axis,)))

    short = [(length, width) for length in (0, 1, 2, 65) for width in (0, 1, 5, 1 << 20)]
    for shape in (*short, (4096, 32768), (1024, 16384), (1 << 20, 64), (1, 1 << 24)):
        for made in (softmax(shape, 0), softmax(shape, 1), total(shape, 0), total(shape, 1)):
            for schedule in chosen(made, target).values():
                assert schedule.num_warps * target.warp_size <= target.max_threads


def test_columns_that_are_read_again_are_held_side_by_side():
    columns = kernel(lambda b, t: b.softmax(b.input("x", (512, 4096), f32), axis=0))
    (held,) = chosen(columns).values()
    assert held.is_persistent
    assert (held.rows, held.block) == (16, 512)


def launched(kernel, **sizes) -> tuple[AttentionSchedule, int]:
    """The schedule at these sizes, and how many programs share the keys of a tile."""
    select, buckets = choices(kernel, REFERENCE)
    value = evaluate(select, sizes)
    (schedule,) = (s for lo, hi, s in buckets if lo <= value and (hi is None or value <= hi))
    (launch,) = emit_kernel(kernel, "kernel", schedule, REFERENCE)
    return schedule, evaluate(launch.grid[1], sizes)


@pytest.mark.parametrize(
    ("sequences", "width", "shared"),
    [
        (1, 8, 1),
        (1, 64, 8),
        (1, 512, 16),
        (8, 8, 1),
        (8, 64, 2),
        (16, 512, 1),
        (17, 512, 3),
        (200, 512, 1),
    ],
)
def test_programs_share_keys_where_tiles_are_few_and_contexts_are_long(sequences, width, shared):
    case = samples.attention([1], [9], heads=32, groups=8, size=128, page=16, dtype=bf16)
    assert launched(case.kernel, t=sequences, seqs=sequences, width=width)[1] == shared


@pytest.mark.parametrize(
    ("tokens", "sequences", "width", "queries", "shared"),
    [
        (64, 1, 512, 16, 26), (600, 1, 512, 16, 3), (2048, 1, 512, 16, 1), (8192, 1, 512, 16, 1),
        (260, 17, 512, 16, 3), (2048 + 128, 129, 64, 16, 1),
    ],
)  # fmt: skip
def test_tiles_of_prompts_and_who_shares_their_keys(tokens, sequences, width, queries, shared):
    case = samples.attention([1], [9], heads=32, groups=8, size=128, page=16, dtype=bf16)
    schedule, found = launched(case.kernel, t=tokens, seqs=sequences, width=width)
    assert (schedule.queries, found) == (queries, shared)


@pytest.mark.parametrize(("heads", "groups"), [(32, 32), (32, 8), (16, 1)])
@pytest.mark.parametrize("size", [64, 128])
def test_dense_attention_takes_tiles_of_128_rows(heads, groups, size):
    kernel = samples.dense_attention(heads=heads, groups=groups, size=size, dtype=bf16).kernel
    few, many = chosen(kernel).values()
    group = heads // groups
    assert (many.queries, many.keys, many.num_warps) == (128 // group, 64, 8)
    assert few.queries * group == 16


@pytest.mark.parametrize(
    ("queries", "keys", "batch", "shared"),
    [(1, 4096, 1, 16), (1, 4096, 17, 3), (1, 4096, 128, 1), (1, 128, 1, 1), (4096, 4096, 1, 1)],
)
def test_one_query_shares_out_its_keys(queries, keys, batch, shared):
    b = Builder()
    q = b.input("q", (batch, 32, queries, 128), bf16)
    k = b.input("k", (batch, 8, keys, 128), bf16)
    graph = b.graph([b.attention(q, k, k, scale=0.1)])
    assert launched(lower_group(graph, graph.nodes, {}).kernel)[1] == shared


def test_counts_of_programs_follow_the_cores():
    """A product whose tiles fill an H200 leaves a device of three times the cores idle."""
    large = replace(REFERENCE, num_cores=3 * REFERENCE.num_cores)
    wide = linear(6144, 4096)
    assert {s.split_k for s in chosen(wide).values() if isinstance(s, DotSchedule)} == {1}
    assert chosen(wide, large)[2].split_k == 2
    assert (scaled(80, REFERENCE), scaled(80, large)) == (80, 240)
    total = kernel(lambda b, t: b.exp(b.input("x", (t, 64), f32)))
    assert list(chosen(total)) == [0, (1 << 17) + 1]
    assert list(chosen(total, large)) == [0, 3 * (1 << 17) + 1]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_the_cheapest_way_is_taken_and_explained(target):
    gigabyte = 10**9
    ways = {"once": Way(gigabyte, launches=1), "in two": Way(gigabyte, launches=2)}
    best, took = compared(ways, target)
    assert best == "once"
    us = gigabyte / target.bandwidth * 1e6 + target.launch_us
    assert took.startswith(f"once {us:.3g} us, in two ")
    slow = Way(1, operations=10**12)
    assert compared({"compute": slow, "read": ways["once"]}, target)[0] == "read"
    if target.is_gpu:
        product = replace(slow, operands=(bf16, bf16))
        faster = target.matrix_op(bf16, bf16).rate / target.rate
        assert faster > 3
        assert product.seconds(target) == pytest.approx(slow.seconds(target) / faster)
