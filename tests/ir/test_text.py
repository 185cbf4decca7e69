"""Text of graphs: prints, parses back to an equal graph, and refuses everything else by place."""

import pytest
from hypothesis import given, settings

from tilewright.ir.builder import Builder
from tilewright.ir.dim import symbol
from tilewright.ir.errors import ParseError, VerifyError
from tilewright.ir.op import OPS
from tilewright.ir.parse import parse_graph, split_top
from tilewright.ir.plan import Plan
from tilewright.ir.text import print_graph, print_plan
from tilewright.ir.types import DTYPES, bf16, f32, i32
from tilewright.ir.verify import verify

from .random_graphs import ALL
from .strategies import graphs

B, S = symbol("b"), symbol("s")

TEXT = """\
graph @block
  dim b in [1, 8]
  dim s in [1, ] multiple 2 hint 128
  dim pages in [0, ]
  input %x : f32[b, s, 64]
  weight %w0 'layers.0.input_layernorm.weight' : f32[64]
  state %kv : f16[pages, 1, 8, 64]
{
  %0 = rms_norm(%x, %w0) {eps=1e-05} : f32[b, s, 64]
  %1 = reshape(%0) {shape=[b*s, 1, 64]} : f32[b*s, 1, 64]
  %2 = iota() {length=b*s, dtype=i32} : i32[b*s]
  %3 = cast(%1) {dtype=f16} : f16[b*s, 1, 64]
  %4 = kv_append(%kv, %3, %2) : f16[pages, 1, 8, 64]
  %5 = full() {value=-inf, shape=[], dtype=f32} : f32[]
  %6 = mul(%0, %5) : f32[b, s, 64]
  update %kv = %4
  return %6, %0
}
"""

GROUPS = {2: " in k0", 3: " in k0 at 0", 4: " in k0", 5: " in k1 at 256*b*s + 64"}
GROUPS |= {6: " in k1", 7: " in k2", 8: " in k2"}


def as_plan(groups):
    """TEXT with what follows node n at place n + 2."""
    head, body = TEXT.split("{\n", 1)
    lines = [line + groups.get(i, "") for i, line in enumerate(body.splitlines(), 2)]
    return head + "{\n" + "\n".join(lines) + "\n"


def test_a_plan_prints_beside_its_graph_and_reads_as_that():
    graph = parse_graph(as_plan(GROUPS))
    assert str(graph) == TEXT
    nodes = graph.nodes
    groups = {"k0": nodes[:3], "k1": nodes[3:5], "k2": nodes[5:]}
    plan = Plan(graph, groups, {nodes[1].result: 0, nodes[3].result: 256 * B * S + 64})
    assert print_plan(plan) == as_plan(GROUPS)
    assert plan.results_of("k0") == [nodes[0].result, nodes[1].result, nodes[2].result]


def test_what_follows_a_type_is_the_place_in_a_plan():
    with pytest.raises(ParseError, match=r"is not a type(.|\n)*<text>:10:"):
        parse_graph(as_plan(GROUPS | {3: " inside k0"}))


def test_groups_of_a_plan_lie_together():
    graph = parse_graph(TEXT)
    first, second, third, *others = graph.nodes
    with pytest.raises(VerifyError, match="not the graph's nodes, each once and in order"):
        Plan(graph, {"k0": (first, third), "k1": (second, *others)})


def test_a_graph_reads_back_as_it_prints():
    graph = parse_graph(TEXT)
    verify(graph)
    assert print_graph(graph) == TEXT
    assert str(graph) == TEXT
    assert graph.symbols["s"].multiple == 2
    assert graph.symbols["s"].hint == 128
    assert graph.updates["kv"] is graph.nodes[4].results[0]


@settings(max_examples=150)
@given(graphs(dtypes=ALL, regions=False))
def test_any_graph_reads_back(graph):
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text)
    verify(again)
    assert print_graph(again) == text
    assert str(graph) == str(again)
    assert again.symbols == graph.symbols
    for one, two in zip(graph.nodes, again.nodes, strict=True):
        assert one.op is two.op
        assert dict(one.attrs) == dict(two.attrs)
        assert [type(v) for v in one.attrs.values()] == [type(v) for v in two.attrs.values()]
        assert [r.type for r in one.results] == [r.type for r in two.results]


def test_comments_and_blank_lines_are_skipped():
    commented = "# a graph\n\n" + TEXT.replace("\n", "   # why\n")
    assert print_graph(parse_graph(commented)) == TEXT


def test_a_hash_inside_a_name_is_no_comment():
    b = Builder()
    b.weight("a#b'c\"d\\", (1,))
    text = print_graph(b.graph([]))
    assert parse_graph(text).weights[0].name == "a#b'c\"d\\"


def test_places_are_printed_when_asked_for():
    b = Builder()
    x = b.input("x", (2,))
    with b.at("layers.0"):
        y = b.neg(x)
    text = print_graph(b.graph([y]), locs=True)
    assert "  %0 = neg(%x) : f32[2]   # layers.0\n" in text
    assert print_graph(parse_graph(text)) == print_graph(b.graph([y]))


def test_numbers_do_not_depend_on_how_a_graph_was_made():
    def build(spare):
        b = Builder()
        x = b.input("x", (2,))
        if spare:
            b.exp(x)
        y = b.neg(x)
        graph = b.graph([y])
        return graph.replace(nodes=(y.node,))

    assert str(build(True)) == str(build(False))
    other = Builder()
    assert str(build(True)) != str(other.graph([]))


@pytest.mark.parametrize("value", [0.1, 1e-300, float("inf"), float("-inf"), -0.0, 3, True])
def test_constants_keep_their_value_and_kind(value):
    b = Builder()
    dtype = f32 if isinstance(value, float) else DTYPES["bool" if value is True else "i64"]
    graph = parse_graph(print_graph(b.graph([b.constant(value, dtype)])))
    again = graph.nodes[0].attrs["value"]
    assert (again, type(again), str(again)) == (value, type(value), str(value))


def test_a_nan_constant_reads_back():
    b = Builder()
    again = parse_graph(print_graph(b.graph([b.constant(float("nan"), f32)])))
    assert again.nodes[0].attrs["value"] != again.nodes[0].attrs["value"]


def test_an_int_where_a_float_is_declared_becomes_one():
    text = TEXT.replace("eps=1e-05", "eps=1")
    eps = parse_graph(text).nodes[0].attrs["eps"]
    assert (eps, type(eps)) == (1.0, float)


def line(old, new):
    assert old in TEXT
    return TEXT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "number", "at", "message"),
    [
        ("", 1, "", "the text ends early"),
        ("graph block\n", 1, "graph block", "expected graph @name"),
        (TEXT + "graph @two\n", 19, "graph @two", "text after the graph's end"),
        (TEXT[: TEXT.index("  return")], 16, "", "the text ends early"),
        (line("dim b in [1, 8]", "dim b [1, 8]"), 2, "dim b", "expected dim, input, weight, state"),
        (line("= rms_norm(", "= rms_nrom("), 9, "%0", "no op named 'rms_nrom'(.|\n)*rms_norm"),
        (line("{eps=1e-05}", "{epsilon=1}"), 9, "epsilon", "rms_norm has no attribute 'epsilon'"),
        (line("{eps=1e-05}", "{eps=small}"), 9, "small", "attribute eps"),
        (line("{eps=1e-05}", "{eps=open('x')}"), 9, "open('x')", "attribute eps"),
        (line("{eps=1e-05}", "{eps=True}"), 9, "True}", "'True' is not of type"),
        (line("{eps=1e-05}", "{eps=1e-05"), 9, "{eps", "{ without }"),
        (line("(%x, %w0)", "(%y, %w0)"), 9, "%y", "%y is not defined before this line"),
        (line("(%x, %w0)", "(%x)"), 9, "%0", "rms_norm: takes 2 operands"),
        (line("%1 = reshape", "%0 = reshape"), 10, "%0", "%0 is defined twice"),
        (line("%1 = reshape", "%1, %9 = reshape"), 10, "%1", "reshape has 1 results, 2 are named"),
        (
            line("f32[b*s, 1, 64]", "f32[b*s, 2, 64]"),
            10,
            "%1",
            "reshape gives f32.b.s, 1, 64",
        ),
        (line("input %x : f32", "input %x : f33"), 5, "f33[", "is not a type such as"),
        (line("%x : f32[b, s, 64]", "%x : f32[b, s"), 5, "f32[b, s", "is not a type such as"),
        (
            line("f32[b, s, 64]\n  weight", "f32[b, s$, 64]\n  weight"),
            5,
            "s$",
            "unexpected character",
        ),
        (line("dtype=i32", "dtype=i33"), 11, "i33}", "'i33' is not a dtype"),
        (line("shape=[b*s, 1, 64]", "shape=b*s"), 10, "b*s}", "is not a list"),
        (line("%0 = rms_norm(%x, %w0)", "rms_norm(%x)"), 9, "rms", "expected: results = op"),
        (line(" : f32[b, s, 64]\n  %1", "\n  %1"), 9, "%0", "expected ': types'"),
        (line("return %6, %0", "return %6, %7"), 17, "%7", "%7 is not defined"),
    ],
)
def test_bad_text_is_refused_with_its_place(text, number, at, message):
    with pytest.raises(ParseError, match=message) as error:
        parse_graph(text, path="case.ir")
    assert f"case.ir:{number}:" in error.value.where
    shown, caret = error.value.facts.split("\n")
    assert shown[len(caret) - 1 :].startswith(at), "the caret points elsewhere"
    assert error.value.where.endswith(f":{len(caret)}")


def test_text_is_never_run():
    evil = line("{eps=1e-05}", "{eps=__import__('os').getpid()}")
    with pytest.raises(ParseError, match="attribute eps"):
        parse_graph(evil)


def test_splitting_respects_brackets_and_quotes():
    assert split_top("a, [b, c], {d, e}, 'f, g', h") == ["a", "[b, c]", "{d, e}", "'f, g'", "h"]
    assert split_top("") == []
    assert split_top("'it\\'s, so', b") == ["'it\\'s, so'", "b"]


def test_every_op_prints_and_parses():
    """Attributes of every declared kind survive: dims, dtypes, tuples, strings, None."""
    b = Builder("all")
    t = b.dim("t", 2, 9)
    x = b.input("x", (1, 2, t, 4))
    w = b.weight("w", (8, 4))
    ids = b.input("ids", (t,), i32)
    out = [
        b.attention(x, x, x, scale=0.5, window=None, softcap=2.5),
        b.gated_linear(x, w, w, activation="silu"),
        b.pad(x, axis=2, before=t, after=0, value=1.5),
        b.slice(x, axis=2, start=1, stop=t),
        b.transpose(x, perm=(3, 2, 1, 0)),
        b.sum(x, axes=(0, -1), keepdims=True),
        b.cast(x, dtype=bf16),
        b.dim_value(value=t * t),
        b.iota(length=t, start=t - 1, step=-1),
        b.gather(x, ids, axis=2),
    ]
    graph = b.graph(out)
    verify(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    assert len(OPS) > 50
