"""Texts on their way in and out of the command line: other encodings, no text at all, signals."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tilewright.cli import console
from tilewright.ir.errors import (
    MAX_COLUMNS,
    OptionError,
    ParseError,
    TilewrightError,
    listed,
)
from tilewright.ir.parse import parse_graph


def written(encoding: str, write, monkeypatch) -> str:
    """What `write` prints on a standard output of this encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    console.prepare_streams()
    write()
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "utf-16"])
@pytest.mark.parametrize("text", ["naïve café", "日本語 🙂", "lone \udc80"])
def test_every_text_can_be_printed_in_every_encoding(encoding, text, monkeypatch):
    data = {"text": text}
    printed = written(encoding, lambda: console.print_json(data), monkeypatch)
    assert json.loads(printed) == data
    plain = written(encoding, lambda: print(text), monkeypatch)
    assert plain.isprintable() or plain.strip().isprintable()


def test_json_keeps_its_letters_where_it_can(monkeypatch):
    printed = written("utf-8", lambda: console.print_json({"text": "日本"}), monkeypatch)
    assert "日本" in printed


@pytest.mark.parametrize(("encoding", "fact"), [("ascii", "ASCII"), ("utf-8", "UTF-8")])
def test_input_that_is_no_text_is_our_error(encoding, fact, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(b"abc \xff\xfe"), encoding=encoding)
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(OptionError, match=f"standard input is not text\n  byte 4 is not {fact}"):
        console.read_input()


def test_an_ascii_terminal_gets_json_from_a_verb(tilewright, tmp_path):
    (tmp_path / "g.ir").write_text("# größe\ngraph @g\n  input %x : f32[3]\n{\n  return %x\n}\n")
    done = tilewright("opt", "g.ir", "-p", "dead-code", "--json", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["graph"].startswith("graph @g")
    missing = tilewright("inspect", "nö-such-fîle", env={"PYTHONIOENCODING": "ascii"})
    assert missing.returncode == 1
    assert "OptionError: n\\xf6-such-f\\xeele does not exist" in missing.stderr


# ---- long messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_from_the_start(tmp_path, closed):
    for verb, code in (("opt --list", 0), ("inspect nothing", 1)):
        command = f'"{sys.executable}" -m tilewright.cli {verb} {closed}'
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == code, command
        assert "Traceback" not in done.stderr


def test_a_full_disk_is_said_in_the_systems_words(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tilewright.cli", "opt", "--list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "OSError: No space left on device\n"


@pytest.mark.parametrize("output", ["file/a", "file/a/b.zip"])
def test_where_nothing_can_be_written_is_said_before_anything_is_built(
    tilewright, tmp_path, output
):
    (tmp_path / "file").touch()
    done = tilewright("compile", "demo", "-o", tmp_path / output)
    assert done.returncode == 1
    assert "ArtifactError: the artifact cannot be written" in done.stderr
    assert "Not a directory" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_pipe_is_not_said_to_be_missing(tilewright, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = tilewright("inspect", tmp_path / "pipe")
    assert done.returncode == 1
    assert "pipe is a device, a pipe or a socket" in done.stderr


def test_a_message_shows_the_beginning_of_an_overlong_line():
    error = TilewrightError("short", facts="f" * 20_000 + "\nnext", fix="fix")
    first, facts, following, fix = str(error).splitlines()
    assert (first, following, fix) == ("short", "  next", "  fix")
    assert len(facts) < MAX_COLUMNS + 40
    assert facts.endswith("... (20002 characters)")
    assert len(error.facts) == 20_005


def test_of_many_the_first_are_listed():
    names = [f"w{number}" for number in range(13)]
    assert listed(names).splitlines() == [*names[:10], "and 3 more"]
    assert listed(names[:10], ", ") == ", ".join(names[:10])
    assert listed([]) == ""


def test_a_parse_error_shows_what_is_around_the_place():
    operands = ", ".join(["%x"] * 5000)
    text = (
        f"graph @g\n  input %x : f32[3]\n{{\n  %0 = concat({operands}, %nope) {{axis=0}} : f32[3]\n"
    )
    with pytest.raises(ParseError) as error:
        parse_graph(text + "  return %0\n}\n")
    lines = str(error.value).splitlines()
    assert max(map(len, lines)) < 200
    assert len(lines) >= 4
    caret = lines[3].index("^")
    assert lines[2][caret:].startswith("%nope")


# ---- the reference and its limits --------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (", ".join(["1"] * 65), "a value has 65 axes, at most 64 can be"),
        ("1048576, 1048576", "its values need 17,592,186,044,416 bytes, and "),
    ],
)
def test_what_the_reference_cannot_hold_is_said(shape, says):
    from tilewright import passes

    text = (
        f"graph @g\n  input %x : f32[{shape}]\n{{\n  %0 = exp(%x) : f32[{shape}]\n  return %0\n}}\n"
    )
    graph = parse_graph(text)
    assert passes.run(graph, "canonicalize", check=1).graph.nodes
    with pytest.raises(TilewrightError, match=says):
        passes.run(graph, "canonicalize", check=2)


# ---- SIGTERM ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_while_compiling_leaves_no_scratch_folder(tmp_path):
    """Code 143, and nothing in the temporary folder."""
    compiler = tmp_path / "slow-c++"
    compiler.write_text("#!/bin/sh\nexec sleep 600\n")
    compiler.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = (
        "from tilewright.cli.interruption import watched\n"
        "from tilewright.codegen.cpp.binary import compile_library\n"
        "from tilewright.ir.target import cpu\n"
        "with watched():\n    compile_library([('k', 'int x;')], cpu())\n"
    )
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "TILEWRIGHT_CXX": str(compiler),
    }
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 300
    while not list(temporary.glob("*/table.cpp")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.glob("*/table.cpp"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    assert list(temporary.iterdir()) == []
