"""Paging: the paged program computes what the dense model computes, for any mix of sequences."""

import numpy as np
import pytest

from tilewright import passes
from tilewright.ir.builder import Builder
from tilewright.ir.errors import PassError, UnsupportedModel
from tilewright.ir.evaluate import evaluate
from tilewright.ir.types import f16, f32, i32, i64
from tilewright.passes.differential import difference
from tilewright.passes.random_inputs import random_weights

from .models import decoder

PAGE = 4


class Engine:
    """The least that drives a paged graph with the reference: pages, tables and steps."""

    def __init__(self, graph, weights, num_pages=64, max_seqs=4):
        self.graph, self.weights = graph, weights
        self.free = list(range(num_pages))[::-1]
        self.pages = {}
        self.lengths = {}
        self.states = {
            s.name: np.zeros((num_pages, *s.shape[1:]), s.dtype.numpy) for s in graph.states
        }

    def step(self, work, rows=None):
        """work: (sequence, its new tokens) in order. Outputs of the run."""
        ids, positions, lengths, slots, starts, lens = [], [], [], [], [0], []
        for name, tokens in work:
            first = self.lengths.get(name, 0)
            pages = self.pages.setdefault(name, [])
            for at in range(first, first + len(tokens)):
                if at // PAGE == len(pages):
                    pages.append(self.free.pop())
                positions.append(at)
                slots.append(pages[at // PAGE] * PAGE + at % PAGE)
            ids += tokens
            self.lengths[name] = first + len(tokens)
            lengths += [self.lengths[name]] * len(tokens)
            starts.append(len(ids))
            lens.append(self.lengths[name])
        width = max(len(self.pages[name]) for name, _ in work)
        table = np.zeros((len(work), width), np.int32)
        for i, (name, _) in enumerate(work):
            table[i, : len(self.pages[name])] = self.pages[name]
        inputs = {
            "input_ids": np.array([ids]),
            "position_ids": np.array([positions]),
            "lengths": np.array([lengths]),
            "slots": np.array(slots, np.int32),
            "page_table": table,
            "query_starts": np.array(starts, np.int32),
            "context_lens": np.array(lens, np.int32),
            "logit_rows": np.arange(len(ids), dtype=np.int32) if rows is None else np.array(rows),
        }
        inputs = {value.name: inputs[value.name] for value in self.graph.inputs}
        outputs, self.states = evaluate(self.graph, inputs, self.weights, self.states)
        return outputs


def dense_logits(graph, weights, tokens):
    inputs = {"input_ids": np.array([tokens]), "position_ids": np.arange(len(tokens))[None]}
    return evaluate(graph, inputs, weights)[0][0][0]


def paged(graph, *more):
    chosen = passes.parse_pipeline(
        "fold-constants,canonicalize,common-subexpressions,fuse-rms-norm,"
        f"page-kv{{page_size={PAGE}}}" + "".join(f",{m}" for m in more)
    )
    return passes.run(graph, chosen, check=1)


def test_chunks_and_batches_give_what_each_sequence_gives_alone(variant):
    """Prompts of different lengths, in chunks, with decode steps between, in shuffled order."""
    result = paged(variant)
    weights = random_weights(variant, seed=3)
    engine = Engine(result.graph, weights)
    rng = np.random.default_rng(5)
    tokens = {name: rng.integers(0, 64, n).tolist() for name, n in (("a", 11), ("b", 1), ("c", 6))}
    expected = {name: dense_logits(variant, weights, t) for name, t in tokens.items()}
    plan = [  # how many tokens of whom in each step
        [("a", 5), ("c", 2)],
        [("c", 1), ("b", 1), ("a", 4)],
        [("a", 1), ("c", 3)],
        [("a", 1)],
    ]
    done = dict.fromkeys(tokens, 0)
    for step in plan:
        work = [(name, tokens[name][done[name] : done[name] + n]) for name, n in step]
        logits = engine.step(work)[0][0]
        at = 0
        for name, n in step:
            part = expected[name][done[name] : done[name] + n]
            assert difference(logits[at : at + n], part) < 1e-9, (name, step)
            at += n
            done[name] += n
    assert done == {name: len(t) for name, t in tokens.items()}


def test_the_whole_pipeline_gives_the_wanted_rows_and_their_argmax(variant):
    chosen = passes.PIPELINES["language-model"](page_size=PAGE, samples=False)
    result = passes.run(variant, chosen, check=1)
    weights = random_weights(variant, seed=3)
    names = [w.name for w in result.graph.weights]
    prepared = dict(zip(names, evaluate(result.prepare, {}, weights)[0]))
    engine = Engine(result.graph, prepared)
    tokens = [7, 3, 60, 12, 1, 2, 33]
    expected = dense_logits(variant, weights, tokens)
    logits, best = engine.step([("s", tokens)], rows=[6, 0, 3])
    assert logits.shape == (3, 64)
    assert difference(logits, expected[[6, 0, 3]]) < 1e-9
    np.testing.assert_array_equal(best, expected[[6, 0, 3]].argmax(-1))


def test_tokens_are_sampled_in_the_program():
    graph = decoder(layers=1)
    result = passes.run(graph, passes.PIPELINES["language-model"](page_size=PAGE), check=1)
    added = {v.name: str(v.type) for v in result.graph.inputs[-7:]}
    assert added == {
        "temperature": "f32[rows]",
        "top_k": "i32[rows]",
        "top_p": "f32[rows]",
        "seed": "i64[rows]",
        "step": "i64[rows]",
        "sources": "i32[1, t]",
        "chosen": "i32[kept]",
    }
    assert [str(v.type) for v in result.graph.outputs] == ["f32[rows, 64]", "i32[rows]"]
    (node,) = [n for n in result.graph.nodes if n.op.name == "sample"]
    assert node.operands[0] is result.graph.outputs[0]


def test_sampling_needs_rows_of_logits():
    with pytest.raises(PassError, match=r"not f32 rows of logits(.|\n)*f32\[1, t, 64\]"):
        passes.run(decoder(layers=1), "sample-tokens", check=1)


def test_metadata_symbols_and_states():
    result = passes.run(
        decoder(layers=2),
        "canonicalize,page-kv{page_size=8, kv_dtype=f16, max_tokens=99, max_seqs=5}",
        check=1,
    )
    graph = result.graph
    types = {v.name: str(v.type) for v in graph.inputs}
    assert types == {
        "input_ids": "i64[1, t]",
        "position_ids": "i64[1, t]",
        "slots": "i32[t]",
        "page_table": "i32[seqs, width]",
        "query_starts": "i32[seqs + 1]",
        "context_lens": "i32[seqs]",
    }
    assert [str(s.type) for s in graph.states] == ["f16[pages, 2, 8, 8]"] * 4
    assert list(graph.updates) == ["k_0", "v_0", "k_1", "v_1"]
    assert (graph.symbols["t"].lo, graph.symbols["t"].hi) == (1, 99)
    assert graph.symbols["seqs"].hi == 5
    assert result.kv.page_size == 8
    assert [pool.dtype for pool in result.kv.pools] == [f16] * 4
    assert result.kv.page_bytes == 2 * 2 * 2 * 8 * 8 * 2


def test_window_and_softcap_go_to_the_paged_op():
    graph = paged(decoder(layers=1, window=5, gemma=True)).graph
    (node,) = [n for n in graph.nodes if n.op.name == "paged_attention"]
    assert node.attrs["window"] == 5
    assert node.attrs["softcap"] == 30.0


def test_numbers_of_tokens_become_their_positions():
    """A model that counts its tokens must count each sequence's own in a batch."""
    b = Builder("learned")
    t = b.dim("t", 1, 64)
    ids = b.input("input_ids", (1, t), i64)
    b.input("position_ids", (1, t), i64)
    h = b.gather(b.weight("table", (64, 8)), ids)
    h = b.add(h, b.gather(b.weight("positions", (64, 8)), b.iota(length=t, start=2)))
    x = b.transpose(b.reshape(h, shape=(1, t, 2, 4)), perm=(0, 2, 1, 3))
    a = b.transpose(b.attention(x, x, x, scale=0.5, is_causal=True), perm=(0, 2, 1, 3))
    check_two_sequences(b.graph([b.add(h, b.reshape(a, shape=(1, t, 8)))]))


def test_keys_and_values_may_differ_in_width():
    b = Builder("latent")
    t = b.dim("t", 1, 64)
    h = b.gather(b.weight("table", (64, 12)), b.input("input_ids", (1, t), i64))
    x = b.transpose(b.reshape(h, shape=(1, t, 2, 6)), perm=(0, 2, 1, 3))
    v = b.slice(x, axis=3, start=1, stop=5)
    a = b.transpose(b.attention(x, x, v, scale=0.5, is_causal=True), perm=(0, 2, 1, 3))
    graph = b.graph([b.reshape(a, shape=(1, t, 8))])
    assert [str(s.type) for s in paged(graph).graph.states] == [
        "f32[pages, 2, 4, 6]",
        "f32[pages, 2, 4, 4]",
    ]
    check_two_sequences(graph)


def check_two_sequences(graph):
    weights = random_weights(graph, seed=1)
    engine = Engine(paged(graph).graph, weights)
    first, second = [5, 9, 2, 7, 7], [1, 3, 3]
    engine.step([("a", first[:3])])
    (out,) = engine.step([("b", second), ("a", first[3:])])
    assert difference(out[0][:3], dense_logits(graph, weights, second)) < 1e-9
    assert difference(out[0][3:], dense_logits(graph, weights, first)[3:]) < 1e-9


def attention_model(q_shape, k_shape):
    b = Builder("odd")
    t = b.dim("t", 1, 64)
    ids = b.input("input_ids", (1, t), i64)
    h = b.gather(b.weight("table", (64, 1)), ids)

    def grown(shape, name):
        shape = tuple(t if d == "t" else d for d in shape)
        one = b.reshape(h, shape=tuple(t if d is t else 1 for d in shape))
        return b.mul(one, b.weight(name, tuple(1 if d is t else d for d in shape)))

    q, k, v = grown(q_shape, "q"), grown(k_shape, "k"), grown(k_shape, "v")
    with b.at("layers.0.attn"):
        return b.graph([b.attention(q, k, v, scale=1.0, is_causal=True)])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, "t", 4), (2, "t", 4)), r"q is f32\[2, t, 4\]: must be \[1, heads, tokens, size\]"),
        (((3, 2, "t", 4), (3, 2, "t", 4)), r"must be \[1, heads, tokens, size\]"),
    ],
)
def test_attention_without_a_paged_form_is_refused_by_name(shapes, message):
    graph = attention_model(*shapes)
    with pytest.raises(UnsupportedModel, match=message) as error:
        passes.run(graph, "page-kv", check=1)
    assert "layers.0.attn" in str(error.value)


def test_a_model_that_mixes_tokens_is_refused():
    b = Builder("conv")
    t = b.dim("t", 1, 64)
    ids = b.input("input_ids", (1, t), i64)
    h = b.gather(b.weight("table", (64, 4)), ids)
    graph = b.graph([b.cumsum(h, axis=1)])
    with pytest.raises(UnsupportedModel, match="conv mixes tokens outside attention"):
        passes.run(graph, "page-kv", check=1)


def test_paging_twice_is_refused():
    graph = paged(decoder(layers=1)).graph
    with pytest.raises(PassError, match="is it paged already"):
        passes.run(graph, "page-kv", check=1)


def test_the_plan_says_which_layers_keep_what():
    result = paged(decoder(layers=3))
    (report,) = [p for p in result.report.passes if p.name == "page-kv"]
    assert report.findings.notes == [
        "pages of 4 tokens, 1536 bytes each",
        "2 heads, 8 wide, f32: k_0 v_0, k_1 v_1, k_2 v_2",
    ]


# ---- narrow-logits -------------------------------------------------------------------------


def narrowed(graph):
    return paged(graph, "narrow-logits", "canonicalize").graph


def test_everything_after_the_last_attention_is_over_the_wanted_rows():
    graph = narrowed(decoder(layers=2))
    wide = [
        n for n in graph.nodes if n.op.kind == "contract" and "t" in map(str, n.results[0].shape)
    ]
    narrow = [n for n in graph.nodes if "rows" in map(str, n.results[0].shape)]
    # layer 0 whole, and q, k, v of layer 1
    assert len(wide) == 7 + 3
    assert sum(n.op.kind == "contract" for n in narrow) == 4 + 1
    assert sum(n.op.name == "gather" for n in narrow) == 2
    assert [str(v.type) for v in graph.outputs] == ["f32[rows, 64]", "i64[rows]"]


def test_what_the_cache_needs_is_not_narrowed():
    graph = narrowed(decoder(layers=1))
    appends = [n for n in graph.nodes if n.op.name == "kv_append"]
    assert [str(n.operands[1].type) for n in appends] == ["f32[t, 2, 8]"] * 2
    assert [n.operands[2].type.dtype for n in appends] == [i32] * 2


def test_logits_in_another_dtype_are_widened():
    b = Builder("half")
    t = b.dim("t", 1, 64)
    ids = b.input("input_ids", (1, t), i64)
    graph = b.graph([b.gather(b.weight("table", (64, 8), f16), ids)])
    after = passes.run(graph, "page-kv,narrow-logits", check=1).graph
    assert [v.dtype for v in after.outputs] == [f32, i64]
    # down to the ids themselves: a model without attention needs no other row
    assert [str(n.results[0].type) for n in after.nodes][:2] == ["i64[1, rows]", "f16[1, rows, 8]"]


def test_narrowing_twice_is_refused():
    with pytest.raises(PassError, match="is it narrowed already"):
        passes.run(narrowed(decoder(layers=1)), "narrow-logits", check=1)


def test_an_output_without_tokens_is_refused():
    b = Builder("odd")
    t = b.dim("t", 1, 64)
    b.input("input_ids", (1, t), i64)
    graph = b.graph([b.weight("w", (4,))])
    with pytest.raises(PassError, match="the first output has no token axis"):
        passes.run(graph, "narrow-logits", check=1)
