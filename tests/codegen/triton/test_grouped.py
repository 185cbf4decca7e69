"""Products of rows with matrices of their own, interpreted or on the GPU: under every schedule."""

import numpy as np
import pytest

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f32, f64, i64

from . import samples
from .harness import check

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

SCHEDULES = [
    GemvSchedule(8, 16, 2),
    GemvSchedule(8, 32, 1, rows=4, fold=2),
    DotSchedule(16, 16, 16, True),
    DotSchedule(16, 32, 64, False),
    DotSchedule(16, 16, 16, True, materialize=True),
]
# rows, matrices, and which matrix each row has
CHOICES = {
    "none": (0, 2, lambda rng: []),
    "one": (1, 1, lambda rng: [0]),
    "few": (3, 8, lambda rng: [7, 0, 7]),
    "all of one": (40, 3, lambda rng: [1] * 40),
    "many": (30, 5, lambda rng: rng.integers(0, 5, 30)),
}
LONG = (2100, 3, lambda rng: rng.integers(0, 3, 2100))


def experts(choice, dtype=f32, gated=False, k=40, n=24):
    """silu(x)[m] @ w[index[m]] * weight[m], or gated."""
    rows, groups, draw = CHOICES.get(choice, LONG)
    b = Builder()
    s = b.dim("t", 0, 512)
    x = b.silu(b.input("x", (s, k), dtype))
    index = b.input("index", (s,), i64)
    ws = [b.weight(name, (groups, n, k), dtype) for name in ("w", "up")[: 1 + gated]]
    if gated:
        y = b.grouped_gated_linear(x, *ws, index, activation="silu")
    else:
        y = b.grouped_matmul(x, *ws, index, transpose_w=True)
    y = b.mul(y, b.input("weight", (s, 1), dtype))
    index = np.asarray(draw(np.random.default_rng(1)), np.int64)
    return samples.make(b, [y], {"t": rows}, {"index": index})


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_meet_their_own_matrices(runner, choice):
    for schedule in SCHEDULES if choice in ("few", "many") else SCHEDULES[:3:2]:
        check(runner, experts(choice), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES[::2], ids=lambda s: type(s).__name__)
def test_gated_and_other_dtypes(runner, schedule):
    check(runner, experts("many", gated=True), schedule)
    check(runner, experts("many", bf16), schedule, 8e-3)
    if isinstance(schedule, GemvSchedule):
        check(runner, experts("few", f64), schedule, 1e-12)


def test_more_rows_than_a_program_sorts_at_once(runner):
    check(runner, experts("long", k=8, n=4), DotSchedule(64, 16, 16))


def test_up_to_a_row_a_matrix_each_row_reads_its_own():
    kernel = experts("few", bf16).kernel
    for name in ("sm_80", "sm_90"):
        rows, buckets = choices(kernel, get_target(name))
        assert evaluate(rows, {"t": 5}) == 5
        kinds = [(low, high, type(schedule)) for low, high, schedule in buckets]
        assert kinds[0] == (0, 8, GemvSchedule)
        assert {kind for _, _, kind in kinds[1:]} == {DotSchedule}
