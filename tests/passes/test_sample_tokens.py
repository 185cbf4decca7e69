"""sample-tokens changes what a graph takes, so it is held by its text and by what it draws."""

import numpy as np
import pytest

from tilewright import passes
from tilewright.ir.errors import PassError
from tilewright.ir.evaluate import evaluate
from tilewright.ir.parse import parse_graph

BEFORE = """graph @logits
  dim rows in [1, ]
  input %x : f32[rows, 7]
{
  %0 = neg(%x) : f32[rows, 7]
  return %0
}
"""
AFTER = """graph @logits
  dim rows in [1, ]
  input %x : f32[rows, 7]
  input %temperature : f32[rows]
  input %top_k : i32[rows]
  input %top_p : f32[rows]
  input %seed : i64[rows]
  input %step : i64[rows]
{
  %0 = neg(%x) : f32[rows, 7]
  %1 = sample(%0, %temperature, %top_k, %top_p, %seed, %step) : i32[rows]
  return %0, %1
}
"""


def test_text():
    assert str(passes.run(parse_graph(BEFORE), "sample-tokens").graph) == AFTER


def test_greedy_and_random_rows_in_one_step():
    graph = passes.run(parse_graph(BEFORE), "sample-tokens").graph
    rows = 200
    x = np.tile(np.log(1 / np.array([1, 2, 3, 4, 5, 6, 7.0])), (rows, 1))
    greedy = np.arange(rows) % 2 == 0
    inputs = {
        "x": x,
        "temperature": np.where(greedy, 0, 1).astype(np.float32),
        "top_k": np.full(rows, 3, np.int32),
        "top_p": np.ones(rows, np.float32),
        "seed": np.arange(rows, dtype=np.int64),
        "step": np.zeros(rows, np.int64),
    }
    (_, tokens), _ = evaluate(graph, inputs)
    assert set(tokens[greedy]) == {6}
    assert set(tokens[~greedy]) == {4, 5, 6}


def test_logits_of_another_rank_are_refused():
    text = BEFORE.replace("[rows, 7]", "[1, rows, 7]")
    with pytest.raises(PassError, match="not f32 rows of logits"):
        passes.run(parse_graph(text), "sample-tokens")
