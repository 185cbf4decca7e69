"""Running the command line as a user does: a process of its own."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def tilewright(tmp_path):
    """run(*args, env=..., input=...) -> CompletedProcess of `python -m tilewright.cli`."""

    def run(*args, env=None, stdin="", cwd=None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "tilewright.cli", *map(str, args)],
            capture_output=True,
            text=True,
            input=stdin,
            cwd=cwd or tmp_path,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", **(env or {})},
            timeout=600,
        )

    return run
