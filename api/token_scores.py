"""The program that tells how likely tokens were: built beside a language model's for a GPU.

A CPU's engine reads logits where they lie; from a GPU each row would have to be copied, and is far
longer than what is asked for.
"""

from ..ir.builder import Builder
from ..ir.graph import Graph
from ..ir.layout import CHOSEN, LOGITS, NUM_ROWS, TARGETS
from ..ir.target import Target
from ..ir.types import f32, i32
from ..passes.pipelines import dense
from ..runtime.engine.sampling_params import MAX_LOGPROBS
from ..runtime.stored_program import StoredProgram
from .compile_graph import compile_graph
from .records import Records


def score_graph(vocab_size: int) -> Graph:
    """Of each row of logits the largest ones, and what the log-probability of a token takes.

    logits: f32 [R, V]; chosen, targets: i32 [R], the token chosen and the one asked for, which is
    negative where it is the chosen one -> largest logits f32 [R, K] in order, and their tokens i32
    [R, K]; log(sum(exp(logits - largest))) + largest in float32, f32 [R]; the token's logit, f32
    [R].
    """
    b = Builder("token_scores")
    rows = b.dim(NUM_ROWS, 1, hint=1)
    logits = b.input(LOGITS, (rows, vocab_size), f32)
    chosen, targets = (b.input(name, (rows,), i32) for name in (CHOSEN, TARGETS))
    zero, last = b.constant(0, i32), b.constant(vocab_size - 1, i32)
    token = b.where(b.lt(targets, zero), chosen, targets)
    token = b.reshape(b.minimum(b.maximum(token, zero), last), shape=(rows, 1))
    best, tokens = b.topk(logits, k=min(MAX_LOGPROBS, vocab_size))
    largest = b.max(logits, axes=(-1,), keepdims=True)
    total = b.sum(b.exp(b.sub(logits, largest)), axes=(-1,), keepdims=True)
    total = b.reshape(b.add(b.log(total), largest), shape=(rows,))
    own = b.reshape(b.gather_elements(logits, token, axis=1), shape=(rows,))
    return b.graph([best, b.cast(tokens, dtype=i32), total, own])


def score_program(vocab_size: int, target: Target, records: Records = None) -> StoredProgram:
    """The program of `score_graph`, with schedules as `records` has them."""
    compiled = compile_graph(score_graph(vocab_size), {}, dense(), target, records=records)
    return StoredProgram(compiled.program, compiled.graph_text)
