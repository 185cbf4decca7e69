"""Programs are built with what is recorded, and a miss says how its key differs."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilewright
from tilewright.api.compile_graph import compile_graph
from tilewright.api.records import chosen_records, user_records
from tilewright.api.request import Request
from tilewright.autotune.record import ScheduleRecord
from tilewright.autotune.record_file import RecordFile
from tilewright.autotune.recorded import RecordedSchedules, load, overlaid
from tilewright.autotune.tasks import tasks_of
from tilewright.codegen.cpp.schedules import RunSchedule, TileSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.errors import OptionError, ParseError
from tilewright.ir.steps import launches
from tilewright.ir.switches import switches
from tilewright.ir.target import cpu, get_target
from tilewright.ir.types import bf16, f16, f32
from tilewright.passes.pipelines import dense

OTHER = TileSchedule(panels=16, thin_panels=2)
WEIGHTS = {"w": np.ones((40, 64), np.float32)}
SIZES = st.integers(0, 12)
ENDS = st.none() | SIZES


def graph(width=40, dtype=f32):
    b = Builder("g")
    s = b.dim("s", 1, 300)
    x, w = b.input("x", (s, 64), dtype), b.weight("w", (width, 64), dtype)
    return b.graph([b.matmul(x, w, transpose_w=True)])


def record_of(key, schedule=OTHER, **changes):
    own = ScheduleRecord(key, schedule, 1e-5, 2e-5, 5e-6, 3, "2026-01-02", "some CPU")
    return replace(own, **changes)


def keys(graph):
    return list(tasks_of(graph, cpu()))


def schedules_in(program):
    (step,) = launches(program.steps)
    return [(choice.lo, choice.hi, choice.schedule) for choice in step.choices]


@pytest.fixture
def file(tmp_path):
    return RecordFile(tmp_path / "records.sqlite")


@given(st.lists(st.tuples(SIZES, ENDS), max_size=5), st.lists(st.integers(1, 11), max_size=3))
def test_a_table_stays_whole_whatever_is_laid_over_it(records, borders):
    """Each size has the schedule of the last record that has it, else its own as before."""
    begins = sorted({0, *borders})
    ends = [b - 1 for b in begins[1:]] + [None]
    table = [(lo, hi, f"own {lo}") for lo, hi in zip(begins, ends)]
    made, expected = table, {}
    for number, (lo, hi) in enumerate(records):
        if hi is not None and hi < lo:
            continue
        made = overlaid(made, lo, hi, number)
        expected |= {
            size: number for size in range(20) if lo <= size and (hi is None or size <= hi)
        }
    assert made[0][0] == 0
    assert made[-1][1] is None
    assert all(a[1] + 1 == b[0] for a, b in pairwise(made))
    assert all(hi is None or lo <= hi for lo, hi, _ in made)
    for size in range(20):
        (found,) = (s for lo, hi, s in made if lo <= size and (hi is None or size <= hi))
        (own,) = (s for lo, hi, s in table if lo <= size and (hi is None or size <= hi))
        assert found == expected.get(size, own)


def test_a_program_is_built_with_what_is_recorded(file):
    _, second, third, _ = keys(graph())
    assert (second.bucket, third.bucket) == ("2..16", "17..128")
    narrow = record_of(second.at(4, 7), TileSchedule(panels=1))
    file.add([record_of(second).stored, narrow.stored])
    made = compile_graph(graph(), WEIGHTS, dense(), cpu(), records=file.path)
    default = str(TileSchedule())
    assert schedules_in(made.program) == [
        (0, 1, default), (2, 3, str(OTHER)), (4, 7, str(narrow.schedule)), (8, 16, str(OTHER)),
        (17, None, default),
    ]  # fmt: skip
    (told,) = (each for each in made.report.passes if each.name == "records")
    assert told.findings.fired == {"contract": 1}
    assert sum(told.findings.declined.values()) == 3
    assert "contract" in str(made.report)


@pytest.mark.parametrize("schedule", [RunSchedule(256), DotSchedule(16, 64, 64, True)])
def test_a_schedule_that_is_none_for_the_kernel_is_not_taken(file, schedule):
    file.add([record_of(keys(graph())[1], schedule).stored])
    made = compile_graph(graph(), WEIGHTS, dense(), cpu(), records=file.path)
    assert schedules_in(made.program) == [(0, None, str(TileSchedule()))]
    (told,) = (each for each in made.report.passes if each.name == "records")
    assert told.findings.declined["contract", f"{schedule} does not fit"] == 1
    assert told.findings.declined["contract", "what is recorded does not fit"] == 1


def test_a_schedule_that_does_not_fit_the_device_is_not_taken():
    """The tiles of one stage are larger than the shared memory of a program."""
    target, product = get_target("sm_90"), graph(width=512, dtype=bf16)
    key, task = next((k, t) for k, t in tasks_of(product, target).items() if t.lo == 17)
    default = [(task.lo, task.hi, task.default)]
    for bk, is_taken in ((64, True), (512, False)):
        schedule = DotSchedule(64, 256, bk, True, num_stages=2)
        found = RecordedSchedules([record_of(key, schedule)], target)
        made = found.buckets(task.kernel, target, task.size, default)
        assert (made == [(task.lo, task.hi, schedule)]) == is_taken


def test_nothing_is_told_of_records_where_there_are_none():
    made = compile_graph(graph(), WEIGHTS, dense(), cpu())
    assert schedules_in(made.program) == [(0, None, str(TileSchedule()))]
    assert all(each.name != "records" for each in made.report.passes)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        (dict(dtype=bf16), {"kernel", "dtypes", "layout"}),  # bf16 weights lie in another order
        (dict(width=72), {"kernel", "layout"}),
    ],
)
def test_a_miss_says_what_changed(changed, parts):
    near, far = (keys(graph(**other))[0] for other in ({}, dict(width=96, dtype=f16)))
    found = RecordedSchedules([record_of(far), record_of(near)], cpu())
    task = next(iter(tasks_of(graph(**changed), cpu()).values()))
    default = [(task.lo, task.hi, task.default)]
    assert found.buckets(task.kernel, cpu(), task.size, default) == default
    (miss,) = found.misses
    assert miss.nearest == near
    assert set(miss.changed) == parts
    assert all(part in str(miss) for part in parts)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"codegen": "0"}, r"codegen \(0 is recorded, this is 1\)"),
        ({"target": "sm_90"}, "differs in target"),
        ({"bucket": "500.."}, r"bucket \(500\.\. is recorded, this is 0\.\.1\)"),
        ({"kernel": "reduce(%0)"}, "nothing like it is recorded"),
    ],
)
def test_a_miss_names_each_part_of_the_key(change, told):
    task = next(iter(tasks_of(graph(), cpu()).values()))
    key = keys(graph())[0]
    found = RecordedSchedules([record_of(replace(key, **change))], cpu())
    found.buckets(task.kernel, cpu(), task.size, [(task.lo, task.hi, task.default)])
    (miss,) = found.misses
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(str(miss))


def test_records_of_a_file_go_above_shipped_ones(file, tmp_path, monkeypatch):
    key = keys(graph())[0]
    monkeypatch.setattr("tilewright.autotune.record_file.SHIPPED", tmp_path)
    (tmp_path / "cpu.jsonl").write_text(record_of(key, TileSchedule(panels=2)).line + "\n")
    found = load(file.path, cpu())
    assert [r.schedule for r in found.records] == [TileSchedule(panels=2)]
    file.add([record_of(key, when="2025-01-01").stored])
    task = next(iter(tasks_of(graph(), cpu()).values()))
    default = [(task.lo, task.hi, task.default)]
    made = load(file.path, cpu()).buckets(task.kernel, cpu(), task.size, default)
    assert made == [(0, 1, OTHER)]


def test_shipped_records_are_records():
    from tilewright.autotune.record_file import SHIPPED

    for path in SHIPPED.glob("*.jsonl"):
        lines = RecordFile(path).lines()
        assert lines
        found = tilewright.autotune.record.parse_lines(lines, str(path))
        assert {record.key.target for record in found} == {path.stem}
        assert len({record.key.digest for record in found}) == len(found)


# ---- how callers name them -----------------------------------------------------------------


def test_a_file_is_named_by_argument_by_switch_or_is_the_users(tmp_path):
    named = tmp_path / "some.sqlite"
    with pytest.raises(OptionError, match="no such file of records") as caught:
        chosen_records(named)
    assert caught.value.where == str(named)
    named.touch()
    assert chosen_records(None) == user_records()
    assert chosen_records("none") is None
    assert chosen_records(str(named)) == named
    with switches(records=named):
        assert chosen_records(None) == named
        assert chosen_records("none") is None
    with switches(records="none"):
        assert chosen_records(None) is None
    with pytest.raises(OptionError, match="records is 3"):
        chosen_records(3)


def test_a_program_with_other_records_has_another_cache_key(file, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    plain = Request(model, target=cpu(), records="none").key
    assert plain is not None
    file.add([])
    assert Request(model, target=cpu(), records=file.path).key == plain
    file.add([record_of(keys(graph())[0]).stored])
    assert Request(model, target=cpu(), records=file.path).key != plain


def test_a_module_is_compiled_with_records(file, tmp_path):
    net, x = torch.nn.Linear(64, 40), torch.ones(3, 64)
    plain = tilewright.compile(net, (x,), target="cpu")
    graphs = [v.compiled.plan.graph for v in plain.variants]
    file.add([record_of(key).stored for key in tasks_of(graphs[0], plain.target)])
    tuned = tilewright.compile(net, (x,), target="cpu", records=file.path)
    kinds = [
        {
            choice.schedule
            for step in launches(each.variants[0].program.steps)
            for choice in step.choices
        }
        for each in (plain, tuned)
    ]
    assert str(OTHER) not in kinds[0]
    assert str(OTHER) in kinds[1]
    assert torch.equal(plain(x), tuned(x))
    with pytest.raises(OptionError, match="no such file of records"):
        tilewright.compile(net, target="cpu", records=tmp_path / "absent")


def test_a_record_that_is_none_stops_the_build(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text("\n" + record_of(keys(graph())[0]).line.replace("TileSchedule", "Tile"))
    with pytest.raises(ParseError, match="no schedule is a 'Tile'") as caught:
        compile_graph(graph(), {}, dense(), cpu(), records=path)
    assert caught.value.where.startswith(str(path))
