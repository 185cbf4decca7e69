"""What holds for every verb: start-up, help, usage errors, interruption, unexpected errors."""

import subprocess
import sys

import pytest
import typer

import tilewright as package
from tilewright.cli import console
from tilewright.ir.errors import MAX_COLUMNS, ShapeError

VERBS = ["generate", "run", "chat", "compile", "inspect", "list", "prune", "opt", "doctor", "demo"]


def test_help_lists_every_verb(tilewright):
    done = tilewright("--help")
    assert done.returncode == 0
    assert all(f" {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(tilewright, verb):
    done = tilewright(verb, "--help")
    assert done.returncode == 0
    assert f"tilewright {verb}" in done.stdout


def test_version(tilewright):
    assert tilewright("--version").stdout == f"tilewright {package.__version__}\n"


def test_help_loads_no_framework():
    code = (
        "import sys\nfrom tilewright.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = ('numpy', 'torch', 'transformers', 'sympy', 'triton')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stderr


def test_unknown_verb_and_option_are_usage_errors(tilewright):
    unknown_verb = tilewright("generat")
    assert unknown_verb.returncode == 2
    assert "No such command 'generat'" in unknown_verb.stderr
    unknown_option = tilewright("doctor", "--jsn")
    assert unknown_option.returncode == 2
    assert "No such option: --jsn" in unknown_option.stderr


def test_a_bad_switch_is_an_error_that_names_the_choices(tilewright):
    done = tilewright("doctor", env={"TILEWRIGHT_DEBUG": "2"})
    assert done.returncode == 1
    assert done.stderr == (
        "OptionError: TILEWRIGHT_DEBUG='2': '2' is not a choice\n  choices: 0, 1\n"
    )


def end_of(function) -> int:
    """Exit code of a function wrapped as a verb."""
    with pytest.raises(typer.Exit) as ended:
        console.verb(function)()
    return ended.value.exit_code


def failing(error):
    def command():
        raise error

    return command


def test_our_errors_are_printed_in_four_parts(capsys):
    error = ShapeError("inner dims differ", where="%1 = matmul", facts="8 and 9", fix="transpose")
    assert end_of(failing(error)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "ShapeError: inner dims differ\n  at %1 = matmul\n  8 and 9\n  transpose\n"
    )


def test_debug_adds_the_traceback(capsys, monkeypatch):
    monkeypatch.setattr(console, "_debug", True)
    assert end_of(failing(ShapeError("inner dims differ"))) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_debug_may_stand_after_the_verb(tilewright):
    assert tilewright("doctor", "--json", "--debug").returncode == 0


def test_interruption_is_one_line(capsys):
    assert end_of(failing(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_a_bug_says_that_it_is_one(capsys):
    assert end_of(failing(ZeroDivisionError("division by zero"))) == 1
    assert capsys.readouterr().err == (
        "InternalError: ZeroDivisionError: division by zero\n  this is a bug in Tilewright\n"
        "  run it again with --debug to see where, and please report it\n"
    )


def test_a_reader_that_leaves_is_no_error():
    """`tilewright doctor | true` prints no traceback."""
    command = f"{sys.executable} -m tilewright.cli doctor | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141)  # 0 where it was faster than the reader's end
    assert done.stderr == ""


def test_a_long_error_is_kept_to_one_screen(capsys, monkeypatch):
    error = ShapeError("many", facts="\n".join(f"fact {i} " + "x" * 5000 for i in range(500)))
    end_of(failing(error))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == console.MAX_LINES + 1
    assert max(map(len, lines)) < MAX_COLUMNS + 40
    assert lines[1].endswith("... (5009 characters)")
    assert "  ... (441 lines left out, --debug shows them)" in lines
    assert lines[-1].startswith("  fact 499")
    monkeypatch.setattr(console, "_debug", True)
    end_of(failing(error))
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_human_bytes(count, text):
    assert console.human_bytes(count) == text
