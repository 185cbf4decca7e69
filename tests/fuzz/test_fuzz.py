"""Damaged files of every format end in an error of ours: no crash, no other error, no hang.

Each format is a process of its own, because what is looked for may end it: a crash in a library,
more memory than a small file may take, a loop. The seeds are fixed; `python -m
tilewright.tests.fuzz.worker FORMAT FIRST COUNT` tries others.
"""

import subprocess
import sys

import pytest

from .formats import FORMATS

# enough for each kind of damage to come up, at a few seconds a format
COUNTS = {"artifact": 60, "config": 60, "tokenizer": 100, "chat_template": 60, "graph_text": 400}
HANG_S = 500  # far more than any needs, on however busy a machine


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_refused(name, tmp_path):
    count = COUNTS.get(name, 300)
    done = subprocess.run(
        [sys.executable, "-m", "tilewright.tests.fuzz.worker", name, "0", str(count)],
        capture_output=True,
        cwd=tmp_path,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    tried, refused = map(int, done.stdout.split()[-2:])
    assert tried == count
    assert refused > count // 3, "most damage is noticed"
