"""Every dtype in kernels: values interpreted or on the GPU, and builds for every GPU target."""

import numpy as np
import pytest

from tilewright.codegen.group import make_plan
from tilewright.codegen.templates import choices
from tilewright.codegen.templates.attention_schedules import AttentionSchedule
from tilewright.codegen.templates.pointwise import PointwiseSchedule
from tilewright.codegen.templates.reduce import ReduceSchedule
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.codegen.triton.pool import compile_all
from tilewright.ir.builder import Builder
from tilewright.ir.errors import UnsupportedOp
from tilewright.ir.target import TARGETS
from tilewright.ir.types import bf16, bool_, f8e4m3, f16, f32, f64, i32

from . import dtypes, samples
from .contractions import product
from .gpus import GPUS
from .harness import check, flat

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

WRAPPING = [*dtypes.INTEGERS, bool_]


def compare(runner, checked: dtypes.Checked, schedule) -> None:
    case, wanted, rounds = checked
    got = runner.run(case, schedule)
    # what is written last are the records of faults
    for number, want, rounded in zip(case.written(), wanted, rounds, strict=False):
        ours, theirs = got[number], flat(want)
        if rounded and not runner.is_card:  # the interpreter rounds to bf16 towards zero
            np.testing.assert_allclose(ours, theirs, rtol=8e-3)
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("source", dtypes.COMPUTED, ids=str)
def test_casts(runner, source):
    pairs = [pair for pair in dtypes.PAIRS if pair[0] == source]
    compare(runner, dtypes.casts(pairs), PointwiseSchedule(64, 1))


@pytest.mark.parametrize("dtype", WRAPPING, ids=str)
def test_integers_wrap(runner, dtype):
    compare(runner, dtypes.wrapping(dtype), PointwiseSchedule(64, 1))


@pytest.mark.parametrize("schedule", [ReduceSchedule(2, 64, True), ReduceSchedule(1, 16, False)])
@pytest.mark.parametrize("dtype", dtypes.COMPUTED, ids=str)
def test_reductions(runner, dtype, schedule):
    compare(runner, dtypes.reductions(dtype), schedule)


@pytest.mark.parametrize("pair", [(f64, f64), (f32, f8e4m3), (i32, f32)], ids=str)
def test_attention_says_which_dtypes_it_takes(pair):
    b = Builder()
    q = b.input("q", (3, 4, 8), pair[0])
    pools = [b.state(name, (2, 2, 4, 8), pair[1]) for name in ("k", "v")]
    shapes = {"table": (1, 2), "starts": (2,), "lens": (1,)}
    meta = [b.input(name, shape, i32) for name, shape in shapes.items()]
    graph = b.graph([b.paged_attention(q, *pools, *meta, scale=0.3)])
    with pytest.raises(UnsupportedOp, match=r"paged_attention(.|\n)*computes in f32") as caught:
        make_plan(graph, target=TARGETS["sm_90"])
    assert "f32, bf16, f16" in str(caught.value)


@pytest.mark.parametrize("pair", [(bf16, f16), (f16, bf16), (bf16, f32)], ids=str)
def test_attention_over_a_cache_of_another_dtype(runner, pair):
    case = samples.attention([1, 5], [9, 12], dtype=pair[0], kv_dtype=pair[1])
    check(runner, case, AttentionSchedule(4, 16), 8e-3)
    (launch,) = emit_kernel(case.kernel, "kernel", AttentionSchedule(4, 16), TARGETS["sm_90"])
    assert "q = q.to(tl.float32)" in launch.source  # which holds both


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_every_dtype_builds(target):
    """Each cast, operation, reduction and product of each dtype, for one of the targets.

    The text of a kernel is the same for all, but for what a target starts early: so the pairs are
    dealt out, and each target gets every source and every result.
    """
    place = GPUS.index(target)
    cases = [dtypes.casts(dtypes.PAIRS[place :: len(GPUS)])[0]]
    cases += [dtypes.wrapping(d)[0] for d in WRAPPING[place :: len(GPUS)]]
    for number, dtype in enumerate(dtypes.COMPUTED):
        if number % len(GPUS) == place:
            cases.append(dtypes.reductions(dtype)[0])
            cases.append(product(dtype=dtype, k=64))
    found = []
    for case in cases:
        schedules = dict.fromkeys(s for _, _, s in choices(case.kernel, target)[1])
        for schedule in [*schedules][:: max(len(schedules) - 1, 1)]:  # a table's ends
            found += emit_kernel(case.kernel, "kernel", schedule, target)
    assert all(made.binary[:4] == b"\x7fELF" for made in compile_all(found, target))
