"""Each example runs, from any folder, and says what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SAYS = {
    "compile_module.py": ["batch 64: largest difference", "batch 65: "],
    "generate_text.py": ["'The capital of France is' -> ", "Paris", "tokens/s"],
    "graph_by_hand.py": ["rms_norm(%x, %w0)"],
    "save_module.py": ["saved ", "batch 1: best [", "batch 5: best [", "Array(f32[5, 4] on cpu)"],
}


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [text for text in SAYS[name] if text not in done.stdout] == []
