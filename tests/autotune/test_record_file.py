"""Files of records: many writers, JSON lines, and all that may be wrong with them."""

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from tilewright.autotune.key import Key
from tilewright.autotune.record import (
    ScheduleRecord,
    UnreadSchedule,
    parse_lines,
    parse_record,
    schedule_from_json,
    schedule_to_json,
)
from tilewright.autotune.record_file import RecordFile, digest_of
from tilewright.codegen.cpp.schedules import TileSchedule
from tilewright.codegen.templates.contract_schedules import DotSchedule
from tilewright.ir.errors import ArtifactError, OptionError, ParseError

KEY = Key("contract(%0)", "f32", "[4] rows", "cpu native, 2 cores", "1", "2..16")
RECORD = ScheduleRecord(
    KEY, TileSchedule(panels=2), 1e-5, 2e-5, 5e-6, 12, "2026-01-02T03:04:05", "a CPU", {"g++": "13"}
)


@pytest.fixture
def file(tmp_path):
    return RecordFile(tmp_path / "records.sqlite")


def read(file):
    return parse_lines(file.lines(), str(file.path))


def test_records_come_back_as_they_were(file):
    other = replace(RECORD, key=KEY.at(17, None), schedule=DotSchedule(16, 64, 64, True))
    assert file.lines() == []
    assert not file.path.exists()
    assert file.add([RECORD.stored, other.stored]) == 2
    assert sorted(read(file), key=str) == sorted([RECORD, other], key=str)
    assert file.lines("cpu") == file.lines()
    assert file.lines("sm_90") == []


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_with_one_key_the_later_stays_whoever_comes_first(file, order):
    later = replace(RECORD, when="2026-02-01T00:00:00", schedule=TileSchedule(panels=16))
    both = [RECORD, later][::order]
    assert sum(file.add([record.stored]) for record in both) == (2 if order == 1 else 1)
    assert read(file) == [later]


WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from tilewright.autotune.record import parse_record
from tilewright.autotune.record_file import RecordFile
record = parse_record(sys.stdin.read(), "stdin")
for i in range(25):
    own = replace(record, key=record.key.at(i, i + int(sys.argv[2])))
    RecordFile(Path(sys.argv[1])).add([own.stored])
"""


def test_many_writers_lose_nothing(file):
    """All come to a file that is not there yet."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file.path), str(number)],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    for process in running:
        assert process.stdin is not None
        process.stdin.write(RECORD.line)
        process.stdin.close()
    for process in running:
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait() == 0
    assert len(read(file)) == 100
    with sqlite3.connect(file.path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()


def test_the_digest_follows_the_records_of_the_target(file):
    empty = digest_of(file.path, "cpu")
    assert digest_of(None, "cpu") == empty
    file.add([RECORD.stored])
    filled = digest_of(file.path, "cpu")
    assert filled != empty
    assert digest_of(file.path, "gfx942") == digest_of(None, "gfx942")
    file.add([replace(RECORD, key=replace(KEY, target="gfx942")).stored])
    assert digest_of(file.path, "cpu") == filled


def test_lines_are_read_as_a_file(tmp_path):
    file = RecordFile(tmp_path / "some.jsonl")
    file.path.write_text(f"{RECORD.line}\n\n")
    assert read(file) == [RECORD]
    with pytest.raises(OptionError, match=r"some\.jsonl is read, and not written"):
        file.add([RECORD.stored])


def test_what_is_no_file_of_records_is_told(file, tmp_path):
    file.path.write_text("{}\n" * 400)
    with pytest.raises(ArtifactError, match="no file of tuning records, or it is damaged"):
        file.lines()
    file.path.unlink()
    with sqlite3.connect(file.path) as database:
        database.execute("CREATE TABLE songs (name TEXT)")
    database.close()
    with pytest.raises(ArtifactError, match="it is a database of something else"):
        file.add([RECORD.stored])
    with pytest.raises(OptionError, match="is a folder"):
        RecordFile(tmp_path).lines()


def test_a_damaged_file_is_told(file):
    file.add([replace(RECORD, key=KEY.at(i, i)).stored for i in range(200)])
    content = bytearray(file.path.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    file.path.write_bytes(content)
    with pytest.raises(ArtifactError, match="or it is damaged"):
        file.lines()


def test_a_newer_file_is_refused(file):
    file.add([RECORD.stored])
    with sqlite3.connect(file.path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(ArtifactError, match="they have version 7, this reads 1"):
        file.lines()


def test_a_field_that_came_later_has_its_default():
    data = {"kind": "DotSchedule", "bm": 16, "bn": 64, "bk": 32}
    assert schedule_from_json(data) == DotSchedule(16, 64, 32)


def test_schedules_come_back_as_they_were():
    for schedule in (TileSchedule(), DotSchedule(16, 64, 64, True, split_k=3)):
        assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": 3}, "key is no object"),
        ({"key": {"kernel": "x"}}, "key has no bucket"),
        ({"key": {**vars(KEY), "bucket": "2-16"}}, "'2-16' is no bucket"),
        ({"schedule": "os.system('true')"}, "schedule is no object with a kind"),
        ({"schedule": {"kind": "Popen"}}, "no schedule is a 'Popen'"),
        ({"schedule": {"kind": "UnreadSchedule", "written": {}}}, "no schedule is a 'UnreadSch"),
        ({"schedule": {"kind": "GemvSchedule", "bn": 2}}, "GemvSchedule has no bk"),
        ({"schedule": {"kind": "RunSchedule", "block": True}}, "RunSchedule.block is True"),
        ({"schedule": {"kind": "RunSchedule", "block": 5}}, "block=5 is outside the domain"),
        ({"schedule": {"kind": "RunSchedule", "block": 512, "x": 1}}, "has an unknown x"),
        ({"seconds": -1.0}, "seconds is -1.0, not a time"),
        ({"default_seconds": 0}, "default_seconds is 0, not a time"),
        ({"seconds": float("nan")}, "seconds is nan, not a time"),
        ({"tried": 1.5}, "tried is 1.5, not a count"),
        ({"when": None}, "when is None, not a text"),
        ({"versions": {"a": 1}}, "not texts by name"),
        ({"more": 1}, "a record has an unknown more"),
    ],
)
def test_a_line_that_is_no_record_says_why(change, told):
    line = json.dumps({**RECORD.to_json(), "key": {**vars_of(KEY)}, **change})
    with pytest.raises(ParseError) as caught:
        parse_record(line, "records:3")
    assert told in str(caught.value)
    assert caught.value.where == "records:3"


def vars_of(key):
    return {name: value for name, value in vars(key).items() if name in key.__match_args__}


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "[" * 5000, '"text"', "null"])
def test_a_line_that_is_no_object_says_so(line):
    with pytest.raises(ParseError, match=r"a record is one JSON document|this is no record"):
        parse_record(line, "x")


def test_all_that_is_wrong_is_told_at_once():
    line = json.dumps({**RECORD.to_json(), "seconds": "fast", "device": 3, "tried": -1})
    with pytest.raises(ParseError) as caught:
        parse_record(line, "x")
    assert len(caught.value.facts.splitlines()) == 3


def test_a_schedule_of_another_version_is_left_as_it_is(file):
    """Its kind may be gone, or have other fields: that must not stop what is built today."""
    old = {
        **RECORD.to_json(),
        "key": {**vars_of(KEY), "codegen": "0"},
        "schedule": {"kind": "Gone"},
    }
    record = parse_record(json.dumps(old), "x")
    assert record.schedule == UnreadSchedule({"kind": "Gone"})
    assert record.to_json()["schedule"] == {"kind": "Gone"}
    file.add([record.stored])
    assert read(file) == [record]
