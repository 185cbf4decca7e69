"""What is shown of long work: how it is drawn, what each stage reports, and that layers do not know
who listens.
"""

import io
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from tilewright.api.compile_graph import compile_graph
from tilewright.api.counted import CountedWeights, counted
from tilewright.cli.progress_line import BAR, Line, Log, progress
from tilewright.frontend.torch_export import import_module
from tilewright.ir.progress import UNITS
from tilewright.ir.target import cpu
from tilewright.passes.pipelines import dense


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(stream: io.StringIO) -> list[str]:
    """What a line showed, one item a redraw."""
    return stream.getvalue().split("\r\x1b[2K")[1:]


@pytest.fixture
def clock(monkeypatch):
    """Then nothing is drawn but when the test asks for it."""
    for kind in (Line, Log):
        monkeypatch.setattr(kind, "every", 3600)
    return Clock()


def test_a_line_shows_how_far_the_work_is_and_is_gone_afterwards(clock):
    stream = io.StringIO()
    line = Line(stream, clock)
    line.show("capture", 0, 1)
    line.show("compile", 7, 14)
    line.show("pack", 3 << 19, 6 << 20)
    line.close()
    assert drawn(stream) == [
        f"capture  {' ' * BAR} 0 s",
        f"compile  {'━' * (BAR // 2)}{' ' * (BAR // 2)} 7/14  0 s",
        f"pack     {'━' * (BAR // 4)}{' ' * (BAR * 3 // 4)} 1.5 MiB of 6.0 MiB  0 s",
        "",
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_a_line_never_fills_the_terminals_own(clock, monkeypatch, columns):
    """One that did would go on in the next, where no redrawing reaches it."""
    monkeypatch.setattr("tilewright.cli.progress_line._columns", lambda stream: columns)
    stream = io.StringIO()
    line = Line(stream, clock)
    for stage, of in {"capture": 30, "compile": 3000, "pack": 15 << 40, "prompts": 2}.items():
        line.show(stage, 0, of)
        clock.now += 5
        line.show(stage, of // 2, of)
        line.draw()
    line.close()
    assert max(map(len, drawn(stream))) < columns
    assert any("1500/3000" in text for text in drawn(stream))


def test_what_others_write_meanwhile_stands_above_the_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress() as show:
        show("capture", 1, 2)
        print("one\ntwo\nhal", end="", file=sys.stderr)
        show("capture", 2, 2)
        print("f", file=sys.stderr)
        print("rest", end="", file=sys.stderr)
        late = sys.stderr
    print(" and more", file=late)
    assert sys.stderr is terminal
    lines = terminal.getvalue().split("\n")
    assert [line.split("\r\x1b[2K")[-1] for line in lines] == [
        "one",
        "two",
        "half",
        "rest and more",
        "",
    ]


@pytest.mark.parametrize("kind", [Line, Log])
def test_nobody_who_reads_is_no_reason_to_stop(clock, kind):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    watcher = kind(Closed(), clock)
    watcher.show("capture", 1, 2)
    watcher.draw()
    watcher.draw()
    watcher.close()


def test_the_time_left_is_the_stages_own(clock):
    line = Line(io.StringIO(), clock)
    clock.now = 100
    line.show("capture", 0, 30)
    clock.now = 100.5
    line.show("capture", 10, 30)
    assert line.seconds_left() is None  # too early to tell
    clock.now = 104
    line.show("capture", 10, 30)
    assert line.seconds_left() == pytest.approx(8)
    line.show("compile", 0, 8)
    assert line.seconds_left() is None
    clock.now = 110
    line.show("compile", 8, 8)
    assert line.seconds_left() is None
    line.show("compile", 0, 4)  # the same stage once more: another program
    clock.now = 113
    line.show("compile", 3, 4)
    assert line.seconds_left() == pytest.approx(1)
    line.close()


def test_many_reports_are_few_drawings(clock):
    stream = io.StringIO()
    line = Line(stream, clock)
    for number in range(1001):
        clock.now += 0.001
        line.show("prefill", number, 1000)
    line.close()
    assert 15 < len(drawn(stream)) < 30
    assert "1000/1000" in drawn(stream)[-2]


def test_a_stream_that_knows_ascii_only():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    line = Line(stream)
    line.show("lower", 1, 2)
    line.close()
    assert b"=" * (BAR // 2) in stream.buffer.getvalue()


@pytest.mark.parametrize("kind", [Line, Log])
def test_it_goes_on_while_nothing_is_reported(kind, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(kind, "every", 0.01)
    watcher = kind(stream)
    watcher.show("capture", 0, 1)
    deadline = time.monotonic() + 300
    while stream.getvalue().count("capture") < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    watcher.close()
    text = stream.getvalue()
    assert text.count("capture") >= 5
    time.sleep(0.05)
    assert stream.getvalue() == text


def test_without_a_terminal_there_are_lines(clock):
    stream = io.StringIO()
    log = Log(stream, clock)
    log.show("start", 0, 1)
    log.draw()
    log.show("capture", 0, 30)
    clock.now = 10
    log.show("capture", 10, 30)
    log.draw()
    log.show("pack", 1 << 20, 1 << 21)
    log.draw()
    log.close()
    assert stream.getvalue().splitlines() == [
        "start, 0 s",
        "capture 10/30 layers, 10 s, 20 s left",
        "pack 1.0 MiB of 2.0 MiB, 10 s",
    ]


def test_short_work_says_nothing_without_a_terminal_and_quiet_work_never(capsys, monkeypatch):
    with progress() as show:
        show("capture", 0, 1)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(quiet=True) as show:
        show("capture", 0, 1)
    assert capsys.readouterr() == ("", "")
    with progress() as show:
        show("capture", 0, 1)
    assert "capture" in capsys.readouterr().err


# ---- what is reported ------------------------------------------------------------------------


def check_reports(reports: list[tuple[str, int, int]]) -> list[str]:
    """Each stage grows to its end. -> the stages, in order."""
    stages = list(dict.fromkeys(stage for stage, _, _ in reports))
    assert set(stages) <= set(UNITS)
    for stage in stages:
        counts = [(done, of) for name, done, of in reports if name == stage]
        assert counts == sorted(counts)
        assert len({of for _, of in counts}) == 1
        assert counts[-1][0] <= counts[-1][1]
    return stages


class Deep(nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.softmax(layer(x), -1)
        return x


def test_two_compilations_at_once_report_to_their_own():
    imported = [import_module(Deep(width, 3), (torch.zeros(2, width),)) for width in (8, 24)]
    reports: list[list] = [[], []]

    def compile_one(number: int) -> None:
        one = imported[number]
        compiled = compile_graph(
            one.graph,
            one.weights,
            dense(),
            cpu(),
            progress=lambda *report: reports[number].append(report),
        )
        for name in compiled.weights:
            compiled.weights[name]

    threads = [threading.Thread(target=compile_one, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for width, own in zip((8, 24), reports, strict=True):
        assert check_reports(own) == ["optimize", "lower", "compile", "pack"]
        # the library is the last of the files; those known from before are finished at once
        files = [(done, of) for stage, done, of in own if stage == "compile"]
        known, of = files[0]
        assert [done for done, _ in files] == list(range(known, of + 1))
        assert own[-1][1] == own[-1][2] >= 3 * width * width * 4


def test_weights_are_counted_by_bytes_and_asked_for_once():
    arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.int8)}
    heard = []
    weights = counted(arrays, "save", lambda *report: heard.append(report))
    assert "b" in weights
    assert weights.lazy("a").shape == (2, 3)
    assert heard == []
    assert weights["b"] is arrays["b"]
    assert weights["a"] is arrays["a"]
    assert heard == [("save", 5, 29), ("save", 29, 29)]
    assert counted(weights, "place", print) is weights
    assert isinstance(weights, CountedWeights)
