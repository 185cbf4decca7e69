"""The analytic model: what must hold of any, and that it ranks what was measured on an H200."""

from dataclasses import replace

import pytest

from tilewright.autotune import model
from tilewright.autotune.kernel_facts import KernelFacts
from tilewright.autotune.work import works
from tilewright.codegen.cpp.schedules import FixedSchedule, TileSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.ir.target import cpu, get_target
from tilewright.ir.types import bf16, f32

from .simulated import SM_90, product_kernel

# microseconds of products of `m` rows by n x k, by (bn, bk, prefetch, warps, rows): results/
# h200_kernels.json, which benchmarks/fit_model.py was fitted to among others
MEASURED = {
    (bf16, 4096, 4096, 8): {
        (4, 256, 2, 1, 4, 8): 17.42,
        (4, 256, 2, 1, 8, 8): 21.15,
        (4, 1024, 1, 4, 8, 8): 22.78,
        (4, 512, 2, 4, 8, 4): 26.96,
    },
    (f32, 576, 576, 32): {
        (4, 128, 4, 1, 4, 4): 3.13,
        (2, 128, 4, 1, 4, 4): 3.80,
        (4, 256, 2, 2, 8, 4): 4.59,
        (8, 512, 2, 4, 8, 4): 5.36,
        (8, 128, 2, 1, 8, 4): 6.23,
    },
    (f32, 4096, 14336, 8): {
        (4, 256, 2, 2, 8, 4): 63.86,
        (4, 512, 2, 4, 8, 4): 67.18,
        (8, 128, 2, 1, 8, 4): 99.79,
    },
}


def seconds(kernel, schedule, target=SM_90, **sizes):
    return model.seconds(KernelFacts(kernel, sizes, target), schedule)


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_what_was_measured_is_ranked(case):
    dtype, n, k, rows = case
    kernel = product_kernel(n, k, SM_90, dtype)
    times = MEASURED[case]
    modelled = {numbers: seconds(kernel, GemvSchedule(*numbers), t=rows) for numbers in times}
    chosen = min(modelled, key=lambda numbers: modelled[numbers])
    assert times[chosen] <= 1.3 * min(times.values())
    # the order of magnitude, too
    for numbers, us in times.items():
        assert us / 2 < modelled[numbers] * 1e6 < us * 2


def test_more_work_takes_longer():
    tile = DotSchedule(128, 128, 64, num_warps=8, num_stages=3)
    kernels = [product_kernel(n, 4096, SM_90, bf16) for n in (1024, 8192, 65536)]
    taken = [seconds(kernel, tile, t=512) for kernel in kernels]
    assert taken == sorted(taken)
    kernel = product_kernel(4096, 4096, SM_90, bf16)
    taken = [seconds(kernel, tile, t=rows) for rows in (128, 1024, 8192)]
    assert taken == sorted(taken)
    assert taken[0] < taken[-1] / 10


def test_large_products_come_near_the_rate_of_the_matrix_unit():
    kernel = product_kernel(8192, 8192, SM_90, bf16, rows=8192)
    floor = KernelFacts(kernel, {"t": 8192}, SM_90).floor
    good = DotSchedule(128, 256, 64, num_warps=8, num_stages=3)
    assert 1.0 < seconds(kernel, good, t=8192) / floor < 2.0
    for poor in (replace(good, bm=16, bn=16), replace(good, bm=32, bn=32, num_stages=1)):
        assert seconds(kernel, poor, t=8192) > 1.5 * seconds(kernel, good, t=8192)


def test_few_rows_want_programs_enough_to_read_w():
    kernel = product_kernel(2048, 8192, SM_90, bf16)
    few = DotSchedule(16, 256, 64, True, num_warps=4, num_stages=2)
    assert seconds(kernel, replace(few, bn=32), t=8) < seconds(kernel, few, t=8)
    assert seconds(kernel, replace(few, split_k=4), t=8) < seconds(kernel, few, t=8)


def test_what_a_target_has_no_room_for_takes_no_time():
    kernel = product_kernel(4096, 4096, SM_90, bf16)
    large = DotSchedule(128, 256, 64, num_warps=8, num_stages=4)
    assert seconds(kernel, large, t=512) is not None
    assert seconds(kernel, large, get_target("sm_86"), t=512) is None
    # sums of a tile that no registers hold
    assert seconds(kernel, replace(large, bm=256, num_warps=4, num_stages=1), t=512) is None
    # cuts that no launch would join
    assert seconds(kernel, replace(large, split_k=5, num_stages=3), t=512) is None


def test_schedules_of_which_nothing_is_known_are_equally_fast():
    kernel = product_kernel(64, 64, cpu(), f32)
    facts = KernelFacts(kernel, {"t": 8}, cpu())
    assert len(works(facts, FixedSchedule())) == 1
    assert model.seconds(facts, FixedSchedule()) > 0


def test_a_cpu_reads_weights_again_for_each_chunk_of_rows():
    kernel = product_kernel(4096, 4096, cpu(), f32)
    small, large = (seconds(kernel, TileSchedule(chunk), cpu(), t=2048) for chunk in (60, 480))
    assert large < small
