"""The proof that tokens meet in attention only, and what it refuses."""

import pytest

from tilewright import passes
from tilewright.ir.builder import Builder
from tilewright.ir.errors import UnsupportedModel
from tilewright.ir.types import f32, i64
from tilewright.passes.token_axis import analyse

from .models import decoder


def model(function, **extra):
    """A graph from input_ids [1, t], looked up in a table, through `function`."""
    b = Builder("model")
    t = b.dim("t", 1, 64)
    ids = b.input("input_ids", (1, t), i64)
    h = b.gather(b.weight("table", (16, 8)), ids)
    with b.at("layers.0.mixer"):
        out = function(b, t, h)
    return b.graph([out])


def heads(b, t, h):
    return b.transpose(b.reshape(h, shape=(1, t, 2, 4)), perm=(0, 2, 1, 3))


def routed(b, t, h):
    """Two rows a token, one after the other: [t, 8] -> [2 * t, 8]."""
    rows = b.broadcast_to(b.reshape(h, shape=(t, 1, 8)), shape=(t, 2, 8))
    return b.reshape(rows, shape=(2 * t, 8))


def choice(b, t, h):
    """The experts of those rows, [2 * t]."""
    return b.reshape(b.topk(b.reshape(h, shape=(t, 8)), k=2, axis=1)[1], shape=(2 * t,))


def chosen(b, t, h):
    """[2 * t, 8] through an expert each, and added up a token."""
    w = b.weight("experts", (8, 8, 8))
    y = b.grouped_matmul(routed(b, t, h), w, choice(b, t, h))
    return b.sum(b.reshape(y, shape=(t, 2, 8)), axes=(1,))


ROW_WISE = {
    "linear": lambda b, t, h: b.matmul(h, b.weight("w", (4, 8)), transpose_w=True),
    "norm": lambda b, t, h: b.rms_norm(h, b.weight("w", (8,))),
    "softmax": lambda b, t, h: b.softmax(h, axis=-1),
    "reduction": lambda b, t, h: b.sum(h, axes=(0, 2)),
    "heads": lambda b, t, h: b.reshape(heads(b, t, h), shape=(2, t, 4)),
    "causal": lambda b, t, h: b.attention(*[heads(b, t, h)] * 3, scale=1.0, is_causal=True),
    "positions": lambda b, t, h: b.add(h, b.gather(b.weight("p", (64, 8)), b.iota(length=t))),
    "slices": lambda b, t, h: b.concat(
        b.slice(h, axis=2, start=4, stop=8), b.slice(h, axis=2, start=0, stop=4), axis=2
    ),
    "column": lambda b, t, h: b.matmul(b.weight("w", (3, 8)), h, transpose_w=True),
    "best expert": lambda b, t, h: b.argmax(h, axis=-1),
    "experts": chosen,
    "their order within a token": lambda b, t, h: b.reshape(
        b.cumsum(b.reshape(routed(b, t, h), shape=(t, 2, 8)), axis=1), shape=(t, 16)
    ),
    "broadcast": lambda b, t, h: b.broadcast_to(h, shape=(3, t, 8)),
    "windows": lambda b, t, h: b.window(h, axis=2, size=3),
    "picked features": lambda b, t, h: b.gather_elements(
        h, b.argmax(h, axis=-1, keepdims=True), axis=2
    ),
    "a constant a token": lambda b, t, h: b.add(
        h, b.transpose(b.broadcast_to(b.weight("c", (8, 1)), shape=(8, t)), perm=(1, 0))
    ),
    "prefix": lambda b, t, h: b.cumsum(h, axis=2),
    "cross": lambda b, t, h: b.attention(
        heads(b, t, h), *[b.weight("m", (1, 2, 5, 4))] * 2, scale=1.0
    ),
}

MIXING = {
    "convolution": (
        lambda b, t, h: b.add(
            h, b.slice(b.pad(h, axis=1, before=1, after=0), axis=1, start=0, stop=t)
        ),
        "pad.*works along the token axis",
    ),
    "windows": (
        lambda b, t, h: b.window(b.pad(h, axis=2, before=0, after=1), axis=1, size=1, step=2),
        "window.*works along the token axis",
    ),
    "sliced positions": (
        lambda b, t, h: b.add(h, b.slice(b.weight("p", (64, 8)), axis=0, start=0, stop=t)),
        "slice.*tells places apart along the token axis",
    ),
    "running count": (
        lambda b, t, h: b.mul(
            h,
            b.cumsum(
                b.broadcast_to(b.reshape(b.weight("one", (1,)), shape=(1, 1)), shape=(t, 1)), axis=0
            ),
        ),
        "cumsum.*works along the token axis",
    ),
    "padded constant": (
        lambda b, t, h: b.add(
            h,
            b.pad(b.broadcast_to(b.weight("c", (8,)), shape=(t - 1, 8)), axis=0, before=0, after=1),
        ),
        "pad.*along the token axis",
    ),
    "mean of tokens": (
        lambda b, t, h: b.sub(h, b.mean(h, axes=(1,), keepdims=True)),
        "mean.*it reduces the token axis",
    ),
    "scores": (
        lambda b, t, h: b.matmul(h, h, transpose_w=True),
        "matmul.*every place meets every other one",
    ),
    "over tokens": (
        lambda b, t, h: b.matmul(b.transpose(h, perm=(0, 2, 1)), h),
        "matmul.*sums over the token axis",
    ),
    "softmax": (lambda b, t, h: b.softmax(h, axis=1), "softmax.*it reduces the token axis"),
    "running sum": (lambda b, t, h: b.cumsum(h, axis=1), "cumsum.*along the token axis"),
    "rows of every other token": (
        lambda b, t, h: b.reshape(
            b.transpose(b.reshape(routed(b, t, h), shape=(2, t, 8)), perm=(1, 0, 2)),
            shape=(t, 16),
        ),
        "reshape.*the token axis",
    ),
    "rows in the order of experts": (
        lambda b, t, h: b.gather(routed(b, t, h), b.sort(choice(b, t, h))[1], axis=0),
        "sort.*it sorts along the token axis",
    ),
    "running sum of rows": (
        lambda b, t, h: b.cumsum(routed(b, t, h), axis=0),
        "cumsum.*works along the token axis",
    ),
    "rows by their place": (
        lambda b, t, h: b.slice(routed(b, t, h), axis=0, start=t, stop=2 * t),
        "slice.*the token axis",
    ),
    "full attention": (
        lambda b, t, h: b.attention(*[heads(b, t, h)] * 3, scale=1.0),
        "attention.*a token sees later ones",
    ),
    "masked attention": (
        lambda b, t, h: b.attention(
            *[heads(b, t, h)] * 3,
            b.slice(b.weight("m", (1, 64)), axis=1, start=0, stop=t),
            scale=1.0,
            is_causal=True,
        ),
        "attention.*mask was not recognized",
    ),
    "hidden from itself": (
        lambda b, t, h: b.attention(
            *[heads(b, t, h)] * 3,
            b.lt(b.iota(length=t), b.reshape(b.iota(length=t), shape=(t, 1))),
            scale=1.0,
            is_causal=True,
        ),
        "attention.*may hide all keys",
    ),
    "length": (
        lambda b, t, h: b.mul(h, b.cast(b.dim_value(value=t), dtype=f32)),
        "dim_value.*how many tokens the step has",
    ),
    "backwards": (
        lambda b, t, h: b.gather(h, b.iota(length=t, start=t - 1, step=-1), axis=1),
        "iota.*how many tokens the step has",
    ),
    "picked": (
        lambda b, t, h: b.gather(h, b.full(value=0, shape=(1,), dtype=i64), axis=1),
        "gather.*picks along the token axis",
    ),
    "crossed": (
        lambda b, t, h: b.add(b.sum(h, axes=(2,)), b.transpose(b.sum(h, axes=(2,)), perm=(1, 0))),
        "add.*every place meets every other one",
    ),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_row_wise_ops_are_proved(name):
    graph = model(ROW_WISE[name])
    facts = analyse(graph)
    assert facts.problems == ()
    axis = facts.axes[graph.outputs[0]]
    assert str(graph.outputs[0].shape[axis]) == "t"
    facts.require("model")


@pytest.mark.parametrize("name", MIXING)
def test_an_op_that_mixes_tokens_is_named(name):
    function, message = MIXING[name]
    facts = analyse(model(function))
    with pytest.raises(UnsupportedModel, match=message) as error:
        facts.require("model")
    assert "(layers.0.mixer)" in str(error.value)
    assert "tilewright.compile(module)" in str(error.value)


def test_all_causes_are_reported_and_each_once():
    def two(b, t, h):
        h = b.sub(h, b.mean(h, axes=(1,), keepdims=True))
        return b.exp(b.cumsum(h, axis=1))

    facts = analyse(model(two))
    assert len(facts.problems) == 2


def test_of_many_problems_the_first_are_shown():
    def many(b, t, h):
        for _ in range(20):
            h = b.sub(h, b.mean(h, axes=(1,), keepdims=True))
        return h

    with pytest.raises(UnsupportedModel, match="and 10 more") as error:
        analyse(model(many)).require("model")
    assert str(error.value).count("reduces the token axis") == 10


def test_a_value_without_tokens_has_no_axis():
    graph = model(lambda b, t, h: b.add(h, b.exp(b.weight("bias", (8,)))))
    facts = analyse(graph)
    exp = next(n for n in graph.nodes if n.op.name == "exp")
    assert facts.axes[exp.results[0]] is None


def test_a_graph_without_tokens_is_refused():
    b = Builder("model")
    graph = b.graph([b.input("pixels", (1, 3, 8, 8))])
    with pytest.raises(
        UnsupportedModel, match=r"not \[1, tokens\](.|\n)*pixels : f32\[1, 3, 8, 8\]"
    ):
        analyse(graph)


def test_whole_models_are_proved_before_and_after_paging(variant):
    assert analyse(passes.run(variant, "recognize", check=1).graph).problems == ()
    chosen = [*passes.PIPELINES["recognize"](), *passes.parse_pipeline("page-kv,hoist-transposes")]
    assert analyse(passes.run(variant, chosen, check=1).graph).problems == ()


def test_written_out_attention_is_not_proved_until_it_is_recognized():
    graph = passes.run(decoder(layers=1), "decompose{keep=[]}", check=1).graph
    assert any("every place meets every other one" in p for p in analyse(graph).problems)
