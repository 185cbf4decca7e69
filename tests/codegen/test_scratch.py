"""Scratch folders: gone after a build, kept for a BuildError, and gone later after a kill."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tilewright.codegen.scratch import PREFIX, scratch_folder
from tilewright.ir.errors import BuildError


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_after_the_build_and_after_an_interruption(temporary):
    with scratch_folder() as folder:
        assert folder.parent == temporary
        (folder / "kernel.cpp").write_text("int x;")
    assert list(temporary.iterdir()) == []
    with pytest.raises(KeyboardInterrupt), scratch_folder() as folder:
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_what_an_error_names_stays(temporary):
    def build() -> None:
        with scratch_folder() as folder:
            (folder / "kernel.cpp").write_text("int x")
            raise BuildError("no semicolon", where=str(folder))

    with pytest.raises(BuildError) as error:
        build()
    folder = Path(error.value.where)
    with scratch_folder():
        pass  # the next build leaves it alone
    assert [path.name for path in folder.iterdir()] == ["kernel.cpp"]


def test_a_build_that_runs_is_left_alone_and_one_that_was_killed_is_not(temporary):
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from tilewright.codegen.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n    print(folder, flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(temporary)], **pipes) as process:
        theirs = Path(process.stdout.readline().strip())
        with scratch_folder():
            assert theirs.is_dir()
        process.send_signal(signal.SIGKILL)
    assert theirs.is_dir()
    (temporary / f"{PREFIX}other").mkdir()  # somebody else's, without a lock
    with scratch_folder():
        assert not theirs.exists()
    assert [path.name for path in temporary.iterdir()] == [f"{PREFIX}other"]
