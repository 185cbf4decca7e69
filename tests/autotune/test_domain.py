"""Which schedules a task has: legal ones, the default first, no two that do the same."""

from collections import Counter
from dataclasses import fields, replace

import pytest

from tilewright.autotune.bucket_sizes import MOST_BYTES, bucket_sizes, sizes_at
from tilewright.autotune.domain import Candidates, space
from tilewright.autotune.kernel_facts import KernelFacts, is_legal
from tilewright.autotune.work import works
from tilewright.codegen.cpp import emit as cpp
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.dim import Symbol, evaluate, symbol
from tilewright.ir.errors import BuildError
from tilewright.ir.target import cpu, get_target
from tilewright.ir.types import bf16, f32

from ..codegen.triton import samples
from .simulated import SM_90, kernels_of, product_kernel, task_of


def tasks(target):
    """Of a small model: lookups, a norm, products, attention, a softmax."""
    b = Builder("g")
    s = b.dim("s", 1, 512, hint=128)
    x = b.input("x", (s, 256), bf16)
    x = b.rms_norm(x, b.weight("g", (256,), bf16))
    heads = [
        b.reshape(b.matmul(x, b.weight(n, (256, 256), bf16), transpose_w=True), shape=(s, 4, 64))
        for n in "qkv"
    ]
    q, k, v = (b.transpose(h, perm=(1, 0, 2)) for h in heads)
    y = b.attention(q, k, v, scale=0.125, is_causal=True)
    y = b.reshape(b.transpose(y, perm=(1, 0, 2)), shape=(s, 256))
    outputs = [b.softmax(b.mul(y, y)), b.sum(y, axes=(0,))]
    for kernel in kernels_of(b.graph(outputs), target):
        size, buckets = choices(kernel, target) if target.is_gpu else cpp.choices(kernel)
        for bucket in buckets:
            yield task_of(kernel, target, size, bucket)


@pytest.mark.parametrize("target", [SM_90, cpu()], ids=lambda t: t.name)
def test_candidates_are_legal_and_differ(target):
    kinds: Counter = Counter()
    for task in tasks(target):
        candidates = Candidates(task)
        chosen = candidates.ordered(12)
        assert chosen[0] == task.default
        assert len(set(chosen)) == len(chosen)
        costs = [candidates.cost(s) for s in chosen[1:]]
        assert costs == sorted(costs)
        kinds[task.kernel.template] += len(chosen)
        for schedule in chosen[1:]:
            for facts in candidates.facts:
                assert all(is_legal(work, target) for work in works(facts, schedule))
            if target.is_gpu:
                assert emit_kernel(task.kernel, "k", schedule, target)
            else:
                assert cpp.emit_kernel(task.kernel, "k", target, schedule)
    assert kinds["contract"] > (40 if target.is_gpu else 10)
    assert {"contract", "reduce", "attention"} <= set(kinds)


def test_other_classes_of_schedule_take_part():
    """A few rows may be multiplied with the matrix unit or without."""
    kernel = product_kernel(1024, 1024, SM_90, bf16)
    size, buckets = choices(kernel, SM_90)
    found = Candidates(task_of(kernel, SM_90, size, buckets[1])).ordered(1 << 16)
    assert {type(s) for s in found} == {GemvSchedule, DotSchedule}


def test_tiles_that_do_not_fit_are_left_out():
    kernel = product_kernel(1024, 1024, SM_90, bf16)
    for name in ("sm_90", "sm_86", "gfx942"):
        target = get_target(name)
        facts = KernelFacts(kernel, {"t": 256}, target)
        large = DotSchedule(128, 256, 128, num_warps=8, num_stages=4)
        assert not all(is_legal(work, target) for work in works(facts, large))
        small = DotSchedule(64, 64, 32, num_warps=4, num_stages=2)
        assert all(is_legal(work, target) for work in works(facts, small))


def test_a_space_is_of_the_domain():
    values = space(DotSchedule(64, 64, 32, split_k=3), SM_90)
    assert values["split_k"] == (1, 2, 3, 4, 8, 16, 32, 64)
    assert values["is_swapped"] == (False, True)
    assert values["programs"] == (0, SM_90.num_cores)
    assert set(values) == {field.name for field in fields(DotSchedule)}
    with pytest.raises(BuildError):
        DotSchedule(65, 64, 32)


def test_sizes_lie_at_both_ends_of_a_bucket():
    kernel = product_kernel(64, 64, SM_90, f32, rows=300)
    t = symbol("t")
    assert bucket_sizes(kernel, t, 17, 64) == [{"t": 64}, {"t": 17}]
    assert bucket_sizes(kernel, t, 0, 1) == [{"t": 1}]
    assert bucket_sizes(kernel, t, 129, None) == [{"t": 300}, {"t": 129}]
    assert bucket_sizes(kernel, 0, 0, None) == [{"t": 64}]
    assert sizes_at(kernel, t * 4, 130) == {"t": 32}
    assert sizes_at(kernel, t * 4, 3) is None


def test_symbols_keep_their_ranges():
    kernel = product_kernel(64, 64, SM_90, f32)
    ranges = {"t": Symbol("t", 2, 100, 8), "u": Symbol("u", 1, 3)}
    kernel = replace(kernel, ranges=ranges, symbols=("t", "u"))
    size = symbol("t") * symbol("u")
    for wanted in (8, 50, 96, 288, 1000):
        sizes = sizes_at(kernel, size, wanted)
        assert sizes["t"] % 8 == 0
        assert sizes["t"] in range(8, 97)
        assert sizes["u"] in range(1, 4)
        assert wanted / 2 < evaluate(size, sizes) <= wanted or wanted == 1000
    assert evaluate(size, sizes) == 288


def test_sizes_of_several_symbols_fit_in_memory():
    """Paged attention chooses by sequences in decode, and far above by tokens a sequence."""
    kernel = samples.attention([1], [3]).kernel
    size, buckets = choices(kernel, SM_90)
    assert len(buckets) == 2
    for lo, hi, _ in buckets:
        found = bucket_sizes(kernel, size, lo, hi)
        for sizes in found:
            assert lo <= evaluate(size, sizes)
            assert hi is None or evaluate(size, sizes) <= hi
            assert sizes["t"] >= sizes["seqs"]
            assert sizes["pages"] >= sizes["seqs"] * sizes["width"]
            assert sum(evaluate(p.type.nbytes, sizes) for p in kernel.params) <= MOST_BYTES
