"""`tilewright opt`: passes over text from a file or a pipe, and what can be wrong with it."""

import json

import pytest

from tilewright import passes
from tilewright.codegen.group import make_plan
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph, print_plan

GRAPH = """\
graph @g
  dim n in [1, ]
  input %x : f32[n, 8]
{
  %0 = full() {value=0.0, shape=[], dtype=f32} : f32[]
  %1 = add(%x, %0) : f32[n, 8]
  %2 = exp(%x) : f32[n, 8]
  return %1
}
"""
WITHOUT_DEAD = GRAPH.replace("  %2 = exp(%x) : f32[n, 8]\n", "")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "g.ir"
    path.write_text(GRAPH)
    return path


def test_a_pass_over_a_file(tilewright, file):
    done = tilewright("opt", file, "--passes", "dead-code")
    assert (done.returncode, done.stdout, done.stderr) == (0, WITHOUT_DEAD, "")


def test_a_pipe_in_and_a_file_out(tilewright, tmp_path):
    out = tmp_path / "out.ir"
    done = tilewright("opt", "-", "-p", "dead-code{weights=False}", "-o", out, stdin=GRAPH)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert out.read_text() == WITHOUT_DEAD


def test_a_named_pipeline_with_dumps_and_report(tilewright, file, tmp_path):
    done = tilewright("opt", file, "--pipeline", "simplify", "--dump", tmp_path / "d", "--report")
    assert done.returncode == 0
    names = [path.name for path in sorted((tmp_path / "d").iterdir())]
    assert names[0] == "00-input.ir"
    assert len(names) > 1
    # the last dump is what was printed; the reader of dumps ignores their comments
    last = parse_graph((tmp_path / "d" / names[-1]).read_text())
    assert print_graph(last) == done.stdout
    assert "canonicalize" in done.stderr


def test_a_plan(tilewright, file):
    """Groups and offsets are shown, with why groups did not join; the text is read again."""
    done = tilewright("opt", file, "--plan", "--report")
    assert done.returncode == 0, done.stderr
    assert "%1 = add(%x, %0) : f32[n, 8] in k0" in done.stdout
    assert "pointwise groups" in done.stderr
    again = tilewright("opt", "-", "-p", "dead-code", "--plan", stdin=done.stdout)
    assert again.stdout == print_plan(make_plan(parse_graph(again.stdout)))
    assert "exp" not in again.stdout


def test_json(tilewright, file):
    done = tilewright("opt", file, "-p", "dead-code", "--json")
    answer = json.loads(done.stdout)
    assert answer["graph"] == WITHOUT_DEAD
    assert answer["report"][0]["pass"] == "dead-code"


def test_the_list_names_every_pass_and_pipeline(tilewright):
    listed = json.loads(tilewright("opt", "--list", "--json").stdout)
    assert [each["name"] for each in listed["passes"]] == list(passes.registry())
    assert list(listed["pipelines"]) == list(passes.PIPELINES)
    text = tilewright("opt", "--list").stdout
    assert all(f"  {name}" in text for name in [*passes.registry(), *passes.PIPELINES])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["missing.ir", "-p", "dead-code"], 1, "OptionError: missing.ir does not exist"),
        ([".", "-p", "dead-code"], 1, "OptionError: . is a folder"),
        (["g.ir"], 2, "give one of --passes and --pipeline, or --plan"),
        (["-p", "dead-code"], 2, "name a file, or - for standard input"),
        (["g.ir", "-p", "dead-cod"], 1, "did you mean dead-code?"),
        (["g.ir", "-p", "dead-code{k=1}"], 1, "PassError: dead-code has no option 'k'"),
        (["g.ir", "-p", "dead-code{"], 1, "ParseError: pass 'dead-code{': { without }"),
        (["g.ir", "--pipeline", "nope"], 1, "OptionError: no pipeline named 'nope'"),
        (["g.ir", "-p", "dead-code", "--check", "3"], 2, "Invalid value for"),
        (["g.ir", "-p", "dead-code", "-o", "no/g.ir"], 1, "no/g.ir: No such file or directory"),
        (["g.ir", "-p", "dead-code", "--stop-after", "cse"], 1, "cannot stop after 'cse'"),
    ],
)
def test_what_can_be_wrong(tilewright, file, args, code, says):
    done = tilewright("opt", *args, cwd=file.parent)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_wrong_graph_is_shown_with_its_place(tilewright, tmp_path):
    (tmp_path / "bad.ir").write_text(GRAPH.replace("add(%x, %0)", "add(%x, %9)"))
    done = tilewright("opt", "bad.ir", "-p", "dead-code")
    assert done.returncode == 1
    assert "ParseError: %9 is not defined before this line" in done.stderr
    assert "at bad.ir:6:" in done.stderr


def test_bytes_that_are_not_text(tilewright, tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe\x00")
    done = tilewright("opt", "weights.bin", "-p", "dead-code")
    assert done.returncode == 1
    assert "OptionError: weights.bin is not text\n  byte 0 is not UTF-8" in done.stderr
