"""`tilewright tune`: a module tuned, its records exported, imported, and what is missing."""

import json

import pytest

from tilewright.autotune.record import parse_lines
from tilewright.autotune.task import TaskOutcome, Tried
from tilewright.cli.app import run
from tilewright.runtime.artifact import open_artifact

SOURCE = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 8))
def small(): return net, (torch.ones(3, 8),), {"input": {0: torch.export.Dim("n", max=300)}}
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("net") / "nets.py"
    path.write_text(SOURCE)
    return f"{path}:small"


@pytest.fixture
def tune(capsys, monkeypatch, tmp_path):
    """tune(*args, code=0) -> (stdout, stderr) of the verb in this process; nothing is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewright.api.tune_model.KernelTuner", StandIn)

    def call(*args, code=0):
        with pytest.raises(SystemExit) as end:
            run(["tune", *map(str, args)])
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        return out, err

    return call


class StandIn:
    def __init__(self, device, workers):
        assert (device.name, workers >= 1) == ("cpu", True)

    def __call__(self, task, *, seconds, seed):
        return TaskOutcome(task, task.default, 2e-6, 2e-6, 1e-6, (Tried(task.default, 2e-6),))

    def times(self, task, size, schedules, *, seed):
        return None

    def close(self):
        pass


def test_a_module_is_tuned_and_its_records_go_elsewhere(net, tune, tmp_path):
    first, second = tmp_path / "first.sqlite", tmp_path / "second.sqlite"
    out, _ = tune(net, "--target", "cpu", "--budget", 100, "--records", first, "--workers", 1)
    assert "tasks on" in out
    assert f"records: {first}" in out
    exported, _ = tune("--export", "--records", first)
    records = parse_lines(exported.splitlines(), "x")
    assert len(records) >= 4
    for line in exported.splitlines():
        assert {"key", "schedule"} <= json.loads(line).keys()
    lines = tmp_path / "lines.jsonl"
    lines.write_text(exported)
    out, _ = tune("--import", lines, "--records", second)
    assert f"{len(records)} records, of which {len(records)} are new" in out
    out, _ = tune("--import", lines, "--records", second)
    assert "of which 0 are new" in out
    assert tune("--export", "--records", second)[0] == exported

    out, _ = tune(net, "--target", "cpu", "--frozen", "--records", second)
    assert out == f"{len(records)} of {len(records)} tasks have a record for cpu\n"
    # an artifact says what it was made of; built with the records it has them
    artifact = tmp_path / "artifact"
    with pytest.raises(SystemExit):
        run(["compile", net, "--target", "cpu", "-o", str(artifact), "--records", str(second)])
    assert tune(artifact, "--frozen", "--records", second)[0].endswith(out)
    _, err = tune(artifact, "--target", "sm_90", "--frozen", code=1)
    assert "is compiled for cpu" in err
    passes = open_artifact(artifact).facts["programs"][0]["passes"]
    (told,) = (each for each in passes if each["pass"] == "records")
    assert sum(told["fired"].values()) == len(records)
    out, _ = tune(net, "--target", "cpu", "--budget", 9, "--records", second, "--resume", "--json")
    data = json.loads(out)
    assert data["states"] == {"kept": len(records)}
    assert data["records"] == str(second)


def test_the_switch_names_the_file_too(net, tune, tmp_path, monkeypatch):
    file = tmp_path / "switched.sqlite"
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(file))
    out, _ = tune(net, "--target", "cpu", "--budget", 100)
    assert f"records: {file}" in out
    assert tune("--export")[0].count("\n") == out.count("tried")


def test_frozen_says_what_changed_and_makes_no_file(net, tune, tmp_path):
    lines, file = tmp_path / "lines.jsonl", tmp_path / "r.sqlite"
    out, _ = tune(net, "--target", "cpu", "--frozen", "--records", file)
    assert "nothing like it is recorded" in out
    assert out.splitlines()[-1].startswith("0 of ")
    assert not file.exists()
    tune(net, "--target", "cpu", "--budget", 100, "--records", file, "--quiet")
    exported, _ = tune("--export", "--records", file)
    lines.write_text(exported.replace('"codegen": "1"', '"codegen": "0"'))
    out, _ = tune(net, "--target", "cpu", "--frozen", "--records", lines, "--json")
    data = json.loads(out)
    assert data["recorded"] == 0
    assert {tuple(miss["changed"]) for miss in data["missing"]} == {("codegen",)}
    out, _ = tune(net, "--target", "cpu", "--frozen", "--records", lines)
    assert "the nearest record differs in codegen (0 is recorded, this is 1)" in out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "nothing says what to tune"),
        (("demo", "--export"), "too much is asked at once"),
        (("--export", "--records", "absent"), "no such file of records"),
        (("--import", "absent"), "No such file"),
        (("--import", "bad.jsonl"), "this is no record of tuning"),
        (("demo", "--dim", "n=1"), "--input and --dim are for those"),
        (("demo", "--target", "cpu", "--records", "bad.jsonl"), "is read, and not written"),
        (("demo", "--target", "cpu", "--records", "bad.sqlite"), "no file of tuning records"),
        (("absent", "--target", "cpu"), "no such file or folder"),
    ],
)
def test_what_cannot_be_done_says_why(tune, tmp_path, monkeypatch, args, told):
    monkeypatch.setattr("tilewright.api.tune_model.tasks_of_request", lambda request, show: {})
    (tmp_path / "bad.jsonl").write_text("{}\n")
    (tmp_path / "bad.sqlite").write_text("text " * 900)
    if args[:1] == ("absent",):
        monkeypatch.undo()
    _, err = tune(*args, code=1)
    assert told in err


@pytest.mark.parametrize("args", [("demo", "--budget", 0), ("demo", "--workers", 0)])
def test_numbers_are_checked(tune, args):
    tune(*args, code=2)
