"""The back end as `build` uses it: buckets, shared kernels, workspaces, parallel compilation."""

import json
from dataclasses import fields
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import pytest

from tilewright.codegen.build_steps import StepMaker
from tilewright.codegen.lower import Lowered
from tilewright.codegen.templates import choices, template_with
from tilewright.codegen.templates.attention_schedules import PRODUCTS
from tilewright.codegen.templates.contract_schedules import GemvSchedule
from tilewright.codegen.templates.pointwise import PointwiseSchedule
from tilewright.codegen.templates.reduce import ReduceSchedule
from tilewright.codegen.templates.template import power_of_2
from tilewright.codegen.triton import pool
from tilewright.codegen.triton.backend import TritonBackend
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.codegen.triton.scalars import TABLE
from tilewright.codegen.triton.worker import request_of
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.errors import BuildError
from tilewright.ir.progress import unwatched
from tilewright.ir.scalar import FUNCTIONS
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f32, i64

from . import samples

pytest.importorskip("triton", reason="Triton is in the extra `gpu`")

TARGET = get_target("sm_90")


def test_every_function_has_a_text():
    assert TABLE.keys() == FUNCTIONS.keys()


CASES = [
    samples.linear(4, dtype=bf16),
    samples.attention([1, 1], [3, 9], dtype=bf16),
    samples.reductions(3, 32768),
    samples.rope_append(),
]


@pytest.mark.parametrize("case", CASES)
def test_buckets_cover_every_size_once(case):
    select, buckets = choices(case.kernel, TARGET)
    for (_, hi, _), (lo, _, _) in pairwise(buckets):
        assert lo == hi + 1
    for t in (1, 2, 16, 17, 64, 65, 512):
        for seqs in {1, t}:
            value = evaluate(select, {"t": t, "seqs": seqs, "pages": 9, "width": 9})
            assert sum(lo <= value and (hi is None or value <= hi) for lo, hi, _ in buckets) == 1


@pytest.mark.parametrize("case", CASES)
def test_every_launch_has_a_variant_for_every_bucket(case):
    _, buckets = choices(case.kernel, TARGET)
    planned = TritonBackend(TARGET).launches(case.kernel, "0" * 64)
    for launch in planned.launches:
        assert [(v.lo, v.hi) for v in launch.variants] == [(lo, hi) for lo, hi, _ in buckets]
        for variant in launch.variants:
            names = {p for p in variant.params if isinstance(p, str)}
            assert names <= planned.workspaces.keys()
        if not launch.label:
            assert [v.schedule for v in launch.variants] == [str(s) for _, _, s in buckets]
    labels = [launch.label for launch in planned.launches]
    assert labels.count("") == 1


@pytest.mark.parametrize("case", CASES)
def test_the_main_launch_has_the_costs_of_its_kernel(case):
    """What prepares for it, or joins what it made, has none: for many sizes it is not launched."""
    steps = StepMaker(Builder().graph([]), TARGET, TritonBackend(TARGET), unwatched)
    args = [f"p{i}" for i in range(len(case.kernel.params))]
    made = steps.launches(Lowered(case.kernel, ()), "group", args, 0, None)
    whole = template_with(case.kernel.parts[0]).traffic(case.kernel)
    (main,) = (step for step in made if step.name == "group")
    assert main.traffic == whole != 0
    assert all(step.traffic == step.operations == 0 for step in made if step is not main)


@pytest.mark.parametrize("group", [1, 4, 24])
@pytest.mark.parametrize("size", [64, 128, 200, 320, 512])
def test_steps_of_attention_in_float32_stay_small_enough_to_compile(size, group):
    case = samples.attention([1], [9], heads=2 * group, groups=2, size=size)
    for _, _, schedule in choices(case.kernel, TARGET)[1]:
        rows = max(16, power_of_2(schedule.queries * group))
        least = max(16, power_of_2(group)) * 16 * power_of_2(size)  # nothing smaller is to be had
        assert rows * schedule.keys * power_of_2(size) <= max(PRODUCTS, least)


def test_workspaces_of_attention_grow_with_nothing_and_its_counters_are_kept():
    case = samples.attention([1], [9], dtype=bf16, heads=32, groups=8, size=128)
    steps = StepMaker(Builder().graph([]), TARGET, TritonBackend(TARGET), unwatched)
    args = [f"p{i}" for i in range(len(case.kernel.params))]
    for group in ("one", "two"):
        (step,) = steps.launches(Lowered(case.kernel, ()), group, args, 0, None)
    spaces = {name: b for name, b in steps.buffers.items() if not b.type.symbols}
    assert spaces.keys() == steps.buffers.keys(), "as large as the programs that share keys"
    assert sum(b.type.nbytes for name, b in spaces.items() if name.startswith("one.")) < 100e6
    (counters,) = (name for name, b in spaces.items() if b.role == "counter")
    assert all(counters in choice.args for choice in step.choices if "partial" in str(choice.args))


def launches_of(case):
    _, buckets = choices(case.kernel, TARGET)
    return [
        (schedule, launch)
        for _, _, schedule in buckets
        for launch in emit_kernel(case.kernel, "kernel", schedule, TARGET)
    ]


@pytest.mark.parametrize("case", [samples.pointwise(), samples.norm(), samples.reductions()])
def test_what_a_module_computes_is_not_contracted(case):
    assert not any(launch.fp_fusion for _, launch in launches_of(case))


def divisions(case, schedule) -> list[str]:
    """The lines of a kernel that divide."""
    (launch,) = emit_kernel(case.kernel, "kernel", schedule, TARGET)
    text = launch.source[launch.source.index("def kernel(") :]
    return [line for line in text.splitlines() if "div_rn" in line]


@pytest.mark.parametrize("is_persistent", [True, False])
def test_softmax_divides_once_a_row(is_persistent):
    (line,) = divisions(samples.norm("softmax"), ReduceSchedule(1, 32, is_persistent))
    assert not line.startswith(" " * 8), "inside the loop over the row"


@pytest.mark.parametrize(
    "divisor", [8.0, -0.25, 2.0**-126, 2.0**126, 3.0, 2.0**-127, 0.0, inf, nan]
)
def test_only_divisions_by_powers_of_2_are_products(divisor):
    b = Builder()
    y = b.div(b.input("x", (40,), f32), b.constant(divisor, f32))
    is_exact = divisor in (8.0, -0.25, 2.0**-126, 2.0**126)
    assert len(divisions(samples.make(b, [y], {}), PointwiseSchedule(64, 1))) == (not is_exact)


@pytest.mark.parametrize(("width", "piece"), [(4096, 1024), (768, 256), (576, 64), (24, None)])
def test_a_lookup_is_checked_once_a_row(width, piece):
    b = Builder()
    ids = b.check_index(b.input("ids", (b.dim("t", 1, 512),), i64), size=5, wraps=False)
    case = samples.make(b, [b.gather(b.weight("table", (5, width), f32), ids)], {"t": 7})
    (launch,) = emit_kernel(case.kernel, "kernel", PointwiseSchedule(1024), get_target("sm_90"))
    rows = piece and f"+ tl.arange(0, {1024 // piece})[:, None]" in launch.source
    assert bool(rows) == (piece is not None)
    assert piece is None or f"+ tl.arange(0, {piece})[None, :]" in launch.source


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_sums_of_products_are_contracted(dtype):
    found = launches_of(samples.linear(4, dtype=dtype, norm=False))
    assert all(launch.fp_fusion for _, launch in found)


def test_a_worker_is_told_all_that_decides_a_binary():
    (_, emitted), *_ = launches_of(samples.pointwise())
    asked = json.loads(request_of(Path("at"), TARGET.name, emitted))["launch"]
    for name in {f.name for f in fields(emitted)} - {"buffers", "dims", "grid"}:
        assert asked[name] == json.loads(json.dumps(getattr(emitted, name)))


def test_many_rows_in_float32_start_alone():
    for dtype, wanted in ((f32, False), (bf16, True)):
        for schedule, launch in launches_of(samples.linear(4, dtype=dtype, norm=False)):
            assert launch.pdl == (wanted or isinstance(schedule, GemvSchedule))
            assert ("gdc_wait" in launch.source) == launch.pdl


def test_equal_kernels_are_compiled_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tilewright.codegen.triton.backend.compile_all",
        lambda launches, target, done: asked.extend(e.name for e in launches) or [],
    )
    backend = TritonBackend(TARGET)
    for key in ("a" * 64, "b" * 64):  # two groups whose graphs differ and whose code does not
        backend.launches(samples.rope_append().kernel, key)
    backend.finish()
    assert len(asked) == len(set(asked)) == len(choices(samples.rope_append().kernel, TARGET)[1])


@pytest.mark.slow
def test_processes_compile_what_one_does(monkeypatch):
    monkeypatch.setattr(pool, "_cores", lambda: 2)
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", 1)
    backend = TritonBackend(TARGET)
    backend.launches(samples.linear(4, dtype=bf16).kernel, "0" * 64)
    started = []
    start = pool._start
    monkeypatch.setattr(pool, "_start", lambda: started.append(start()) or started[-1])
    together, blobs = backend.finish()
    assert len(started) == 2
    assert all(p.returncode is not None for p in started)
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", 100)
    alone, _ = backend.finish()
    assert together == alone
    assert all(blob[:4] == b"\x7fELF" for blob in blobs.values())


@pytest.mark.slow
def test_a_source_that_does_not_compile_is_shown(monkeypatch):
    monkeypatch.setattr(pool, "_cores", lambda: 2)
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", 1)
    backend = TritonBackend(TARGET)
    backend.launches(samples.linear(4, dtype=bf16).kernel, "0" * 64)
    for name, item in backend._collected.items():
        broken = item.emitted.source.replace("tl.store(", "tl.stor(")
        object.__setattr__(item.emitted, "source", broken)
        assert name == item.emitted.name
    with pytest.raises(BuildError, match="Triton could not compile") as caught:
        backend.finish()
    assert "stor" in str(caught.value)
    with open(caught.value.where) as kept:
        assert "tl.stor(" in kept.read()
