"""Causal language models of transformers: a sample of what causal_types.py tries."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from . import causal_types

PAGE = Path(__file__).parents[2] / "docs" / "causal_types.py"


@pytest.mark.slow
def test_a_type_gives_the_tokens_of_eager():
    row = causal_types.check("diffllama", "reference")
    assert row["step"] == "done", row
    assert row["is_right"] == (True, True)


def test_a_recurrent_type_is_refused_by_that_name():
    row = causal_types.check("deepseek_v4", "reference")
    assert row["step"] == "compile"
    assert row["is_refused"]
    assert "recurrent state" in row["error"]
    assert "layers of type heavily_compressed_attention" in row["error"]


def test_the_page_counts_each_type_once_by_its_best_row():
    page = runpy.run_path(str(PAGE))["page"]
    right = {"step": "done", "is_right": [True, True]}
    refused = {"step": "compile", "is_refused": True, "stage": "cpu"}
    state = "UnsupportedModel: the model keeps a recurrent state | at M | layers of type conv | run"
    text = page(
        [
            {"type": "a", "stage": "cpu", **right},
            {"type": "a", **refused, "error": "UnsupportedModel: it is large"},
            {"type": "b", "stage": "sm_90", **right, "is_right": [True, False]},
            {"type": "c", **refused, "error": state},
            {"type": "d", **refused, "error": "UnsupportedModel: it loops | at modeling_d.py:3: x"},
        ],
        "9.9",
    )
    for line in (
        "## Right: 1",
        "On the CPU: `a`.",
        "- conv: `c`",
        "| `b` | done: wrong |",
        "| `d` | refused: it loops (modeling_d.py:3: x) |",
    ):
        assert line in text.splitlines()
