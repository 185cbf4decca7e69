"""Tuning: budgets, what is kept and what is left, the report, other devices; with a stand-in that
measures nothing.
"""

import sys
import threading
from types import SimpleNamespace

import pytest

from tilewright.autotune.bench import Bench, Budget, clock, shares
from tilewright.autotune.on_ray import devices_of
from tilewright.autotune.record import parse_lines
from tilewright.autotune.record_file import RecordFile
from tilewright.autotune.task import TaskOutcome, Tried
from tilewright.autotune.tasks import merged_tasks, tasks_of, weight
from tilewright.autotune.tune import tune
from tilewright.codegen.cpp.schedules import TileSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.errors import BuildError, DeviceError, OptionError
from tilewright.ir.target import cpu

BEST = TileSchedule(panels=16)


def tasks(*widths):
    b = Builder("g")
    s = b.dim("s", 1, 300)
    x = b.input("x", (s, 64))
    for number, width in enumerate(widths):
        x = b.matmul(x, b.weight(f"w{number}", (x.shape[-1], width)))
    return tasks_of(b.graph([x]), cpu())


class StandIn:
    """Finds BEST at once; of tasks whose numbers are named it raises or measures nothing."""

    def __init__(self, fails=(), idle=()):
        self.asked, self.fails, self.idle = [], fails, idle
        self.opened, self.closed = [], 0

    @property
    def bench(self):
        """Where it tunes."""
        return Bench(lambda: "the device", self.start, "some CPU", {"cxx": "13"})

    def start(self, device, workers):
        self.opened.append((device, workers))
        return self

    def close(self):
        self.closed += 1

    def times(self, task, size, schedules, *, seed):
        return None

    def __call__(self, task, *, seconds, seed):
        number = len(self.asked)
        self.asked.append((task, seconds, seed))
        if number in self.fails:
            raise BuildError("no luck", facts="a reason")
        if number in self.idle[:1]:
            return TaskOutcome(task, task.default, None, None, 1e-6, ())
        if number in self.idle:
            alone = (Tried(task.default, 4e-6),)
            return TaskOutcome(task, task.default, 4e-6, 4e-6, 1e-6, alone, was_cut=True)
        tried = Tried(task.default, 4e-6), Tried(BEST, 2e-6), Tried(BEST, None, "it hung\nmore")
        return TaskOutcome(task, BEST, 2e-6, 4e-6, 1e-6, tried)


@pytest.fixture
def file(tmp_path):
    return RecordFile(tmp_path / "records.sqlite")


def test_each_outcome_is_kept_and_reported(file):
    work, stand_in, heard = tasks(64, 96), StandIn(), []
    report = tune(
        work, stand_in.bench, file, Budget(100.0, 3, 7), progress=lambda *what: heard.append(what)
    )
    kept = {r.key: r for r in parse_lines(file.lines(), "x")}
    assert kept.keys() == work.keys()
    for record in kept.values():
        assert record.schedule == BEST
        assert (record.seconds, record.default_seconds, record.floor_seconds) == (2e-6, 4e-6, 1e-6)
        assert (record.tried, record.device, record.versions) == (3, "some CPU", {"cxx": "13"})
    assert stand_in.opened == [("the device", 3)]
    assert stand_in.closed == 1
    assert {seed for *_, seed in stand_in.asked} == {7}
    assert [asked[0] for asked in stand_in.asked] == list(work.values())
    assert {stage for stage, _, _ in heard} == {"tune"}
    assert {of for _, _, of in heard} == {100}
    text = str(report)
    assert "8 tasks on some CPU: 8 tuned" in text
    assert "4.0 ->       2.0 us   2.00x   50% of the floor's speed  panels 4 -> 16" in text
    assert "1 had no time: it hung\n" in text
    data = report.to_json()
    assert data["states"] == {"tuned": 8}
    assert [c["seconds"] for c in data["tasks"][0]["candidates"]] == [4e-6, 2e-6, None]
    assert data["tasks"][0]["candidates"][2]["reason"] == "it hung\nmore"
    assert data["tasks"][0]["candidates"][1]["schedule"]["panels"] == 16
    assert data["tasks"][0]["gain"] == 2.0


def test_one_that_fails_or_measures_nothing_leaves_the_others(file):
    work = tasks(64)
    stand_in = StandIn(fails=(1,), idle=(2, 3))
    report = tune(work, stand_in.bench, file, Budget(100.0))
    assert [row.state for row in report.rows] == ["tuned", "failed", *["no time left"] * 2]
    assert len(file.lines()) == 1
    assert "no luck" in str(report)
    assert "a reason" in report.to_json()["tasks"][1]["problem"]


def test_a_run_that_is_ended_is_resumed(file):
    work = tasks(64, 96)

    class Ended(StandIn):
        def __call__(self, *args, **options):
            if len(self.asked) == 3:
                raise KeyboardInterrupt
            return super().__call__(*args, **options)

    ended = Ended()
    with pytest.raises(KeyboardInterrupt):
        tune(work, ended.bench, file, Budget(100.0))
    assert ended.closed == 1
    assert len(file.lines()) == 3
    stand_in = StandIn()
    report = tune(work, stand_in.bench, file, Budget(100.0), resume=True)
    assert len(stand_in.asked) == 5
    assert sorted(row.state for row in report.rows) == ["kept"] * 3 + ["tuned"] * 5
    assert {row.key for row in report.rows if row.was_kept} == set(list(work)[:3])
    again = StandIn()
    tune(work, again.bench, file, Budget(100.0))
    assert len(again.asked) == 8  # without `resume` all is measured anew


def test_no_budget_tunes_nothing(file):
    report = tune(tasks(64), StandIn().bench, file, Budget(0.0))
    assert {row.state for row in report.rows} == {"no time left"}
    assert "4 no time left" in str(report)
    assert file.lines() == []


def test_a_task_has_time_enough_to_begin(file):
    stand_in = StandIn()
    tune(tasks(64), stand_in.bench, file, Budget(8.0))
    given = [seconds for _, seconds, _ in stand_in.asked]
    assert given == pytest.approx([5.0] * 3 + [7.0], abs=0.5)  # one is for borders


def test_time_is_shared_evenly_and_by_cost():
    given = shares({"a": 3.0, "b": 1.0, "c": 0.0}, 12.0)
    assert given == pytest.approx({"a": 6.5, "b": 3.5, "c": 2.0})
    assert shares({"a": 0.0, "b": 0.0}, 4.0) == {"a": 1.0, "b": 1.0}


def test_tasks_that_cost_most_come_first():
    work = tasks(64, 640, 64)
    parts = {"0..1": 1, "2..16": 2, "17..128": 3, "129..": 4}
    costs = [weight(task) / parts[key.bucket] for key, task in work.items()]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 4
    both = merged_tasks([work, tasks(64)])
    assert {t.count for t in both.values()} == {1, 2}
    assert both.keys() == work.keys()


def test_progress_tells_how_much_of_the_time_has_gone(monkeypatch):
    now, heard, enough = [10.0], [], threading.Event()
    monkeypatch.setattr("tilewright.autotune.bench.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tilewright.autotune.bench.TICK_SECONDS", 0.001)

    def hear(*what):
        heard.append(what)
        now[0] += 7.5
        if len(heard) > 5:
            enough.set()

    with clock(hear, 30.0):
        assert enough.wait(60)
    count = len(heard)
    assert heard[:6] == [("tune", at, 30) for at in (0, 7, 15, 22, 30, 30)]
    assert len(heard) == count


# ---- borders -------------------------------------------------------------------------------

FLAT, STEEP = TileSchedule(panels=16), TileSchedule(panels=1)


class Crossing(StandIn):
    """In buckets that begin below `apart` STEEP wins, above FLAT; their times cross at `cross`."""

    def __init__(self, cross, apart=129):
        super().__init__()
        self.cross, self.apart, self.measured = cross, apart, []

    def __call__(self, task, *, seconds, seed):
        best = STEEP if task.lo < self.apart else FLAT
        self.asked.append((task, seconds, seed))
        return TaskOutcome(task, best, 2e-6, 4e-6, 1e-6, ())

    def times(self, task, size, schedules, *, seed):
        self.measured.append(size)
        assert task.lo <= size
        assert task.hi is None or size <= task.hi
        costs = {FLAT: 1e-6 * self.cross + 1e-9 * size, STEEP: 1e-6 * size}
        return [costs[schedule] for schedule in schedules]


@pytest.mark.parametrize(
    ("cross", "bounds", "taken"),
    [
        (60, ((60, 68), (128, 128)), FLAT),  # the upper side's is faster below the border
        (10, ((17, 17), (128, 128)), FLAT),  # and in all of the bucket
        (300, ((129, 129), (280, 300)), STEEP),  # the lower side's is faster above it
        (9000, ((129, 129), None), STEEP),
        (128.5, None, None),
    ],
)
def test_a_border_is_moved_to_where_times_cross(file, cross, bounds, taken):
    stand_in, work = Crossing(cross), tasks(64)
    report = tune(work, stand_in.bench, file, Budget(100.0, seed=7))
    records = parse_lines(file.lines(), "x")
    moved = [r for r in records if r.floor_seconds != 1e-6]
    assert len(stand_in.measured) <= 2 + 1 + 5
    if bounds is None:
        assert moved == []
        return
    (record,) = moved
    assert record.schedule == taken
    (first, last), hi = bounds[0], bounds[1]
    assert first <= record.key.bounds[0] <= last
    if hi is None:
        assert record.key.bounds[1] is None
    else:
        assert hi[0] <= record.key.bounds[1] <= hi[1]
    assert record.seconds < record.default_seconds
    assert record.floor_seconds > 0
    assert f"sizes {record.key.bucket}" in str(report)
    # what is tuned anew does not leave old borders behind
    tune(work, Crossing(128.5).bench, file, Budget(100.0))
    assert len(file.lines()) == 4


def test_borders_between_kept_buckets_stay(file):
    work = tasks(64)
    tune(work, Crossing(60).bench, file, Budget(100.0))
    again = Crossing(60)
    tune(work, again.bench, file, Budget(100.0), resume=True)
    assert again.opened == []
    assert len(file.lines()) == 5


# ---- Ray -----------------------------------------------------------------------------------


class Ray:
    """Enough of ray to see what it is asked: actors work at once; of some tasks one is lost."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self, gpus=0, machines=2, lost=()):
        self.asked, self.lost, self.needs, self.actors, self.killed = [], lost, None, 0, 0
        node = {"Alive": True, "Resources": {"CPU": 8.0, **({"GPU": gpus} if gpus else {})}}
        self._nodes = [node] * machines + [{"Alive": False, "Resources": {"GPU": 9}}]

    def is_initialized(self):
        return True

    def nodes(self):
        return self._nodes

    def remote(self, **needs):
        self.needs = needs
        return lambda kind: SimpleNamespace(remote=lambda *args: self._actor(kind(*args)))

    def _actor(self, made):
        self.actors += 1

        def call(*args):
            self.asked.append(args)
            return len(self.asked) - 1, made

        return SimpleNamespace(tune=SimpleNamespace(remote=call))

    def wait(self, references, num_returns, timeout):
        return references[-1:], references[:-1]

    def get(self, reference):
        number, made = reference
        if number in self.lost:
            raise self.exceptions.RayError("the machine is gone\nmore")
        return made.tune(*self.asked[number])

    def kill(self, actor):
        self.killed += 1


def test_ray_takes_tasks_to_devices(file, monkeypatch):
    ray, work = Ray(lost=(1,)), tasks(64)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert devices_of(False) == 2
    stand_in = StandIn()
    report = tune(work, stand_in.bench, file, Budget(100.0, 2), on_devices=2)
    assert [row.state for row in report.rows] == ["tuned", "failed", "tuned", "tuned"]
    assert "the machine is gone" in report.rows[1].problem
    assert ray.needs == {"num_cpus": 8}
    assert len(file.lines()) == 3
    # two devices, and one more in place of the one that was lost
    assert stand_in.opened == [("the device", 2)] * 3
    assert (ray.actors, ray.killed) == (3, 2)
    # together they have twice the time, and none more than there is
    assert ray.asked[0][1] == pytest.approx(50.0, abs=1)
    assert all(seconds <= 100.0 for _, seconds in ray.asked)


def test_ray_counts_the_devices_of_a_target(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", Ray(gpus=4))
    assert devices_of(True) == 8
    monkeypatch.setitem(sys.modules, "ray", Ray())
    with pytest.raises(DeviceError, match="Ray knows no GPU"):
        devices_of(True)


def test_without_ray_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="--ray needs the package ray") as caught:
        devices_of(False)
    assert "tilewright[ray]" in caught.value.fix
