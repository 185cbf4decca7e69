"""Pipelines: their text, verification, dumps, the differential check and the report."""

import json
from dataclasses import dataclass

import pytest

from tilewright import passes
from tilewright.codegen.group import make_plan
from tilewright.ir import switches
from tilewright.ir.builder import Builder
from tilewright.ir.errors import ParseError, PassError, VerifyError
from tilewright.ir.graph import Node
from tilewright.ir.parse import parse_graph
from tilewright.ir.types import bf16, f16, i64
from tilewright.passes.differential import Differential
from tilewright.passes.manager import Pass
from tilewright.passes.rewrite import replace_nodes

from .models import decoder


def graph_of_two():
    b = Builder()
    t = b.dim("t", 1, 8)
    x = b.input("x", (t, 4))
    return b.graph([b.neg(b.neg(b.add(x, b.constant(0.0, x.dtype))))])


@dataclass(frozen=True)
class Spoil(Pass):
    """Replaces add by sub: numbers move."""

    def run(self, graph):
        def spoil(b, node, operands):
            return [b.sub(*operands)] if node.op.name == "add" else None

        return replace_nodes(graph, spoil)

    def __str__(self):
        return "spoil"


@dataclass(frozen=True)
class Break(Pass):
    """Leaves a value undefined."""

    def run(self, graph):
        return graph.replace(nodes=graph.nodes[1:])

    def __str__(self):
        return "break"


def test_text_of_a_pipeline_round_trips():
    text = "canonicalize,store-weights{dtype=f16},page-kv{page_size=32, kv_dtype=bf16}"
    chosen = passes.parse_pipeline(text)
    assert [str(p) for p in chosen] == [
        "canonicalize",
        "store-weights{dtype=f16}",
        "page-kv{page_size=32, kv_dtype=bf16}",
    ]
    assert chosen[1].dtype is f16
    assert (chosen[2].page_size, chosen[2].kv_dtype, chosen[2].max_seqs) == (32, bf16, None)
    keep = passes.parse_pipeline("decompose{keep=[rms_norm, softmax]}")[0].keep
    assert keep == ("rms_norm", "softmax")
    assert passes.parse_pipeline("decompose{keep=[]}")[0].keep == ()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ParseError, "names no pass"),
        ("canonicalise", PassError, "no pass named 'canonicalise'(.|\n)*did you mean canonicalize"),
        ("page-kv{size=3}", PassError, "page-kv has no option 'size'(.|\n)*page_size"),
        ("page-kv{page_size=x}", PassError, "option page_size of page-kv"),
        ("page-kv{page_size}", PassError, "no option 'page_size'"),
        ("store-weights{dtype=f17}", PassError, "'f17' is not a dtype"),
        ("page-kv{page_size=3", ParseError, "{ without }"),
    ],
)
def test_bad_text_is_an_error_that_says_where(text, error, message):
    with pytest.raises(error, match=message):
        passes.parse_pipeline(text)


def test_every_named_pipeline_can_be_made_and_parsed_back():
    for name, make in passes.PIPELINES.items():
        text = ",".join(map(str, make()))
        assert [str(p) for p in passes.parse_pipeline(text)] == [str(p) for p in make()], name


def test_every_pass_is_documented():
    for name, cls in passes.registry().items():
        assert cls.__doc__, name
        assert not cls.__doc__.startswith(f"{cls.__name__}("), f"{name} has no docstring"
        assert name == "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__)[1:]
        assert cls.__module__.endswith("." + name.replace("-", "_"))


def test_an_unchanged_graph_is_the_same_object():
    graph = graph_of_two()
    once = passes.run(graph, "canonicalize", check=1).graph
    again = passes.run(once, "canonicalize,common-subexpressions,dead-code", check=1)
    assert again.graph is once
    assert not any(p.changed for p in again.report.passes)


def test_dumps_are_numbered_and_parse(tmp_path):
    passes.run(graph_of_two(), "fold-constants,canonicalize,dead-code", dump=tmp_path, check=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00-input.ir", "02-canonicalize.ir"]
    for path in tmp_path.iterdir():
        parse_graph(path.read_text())


def test_dumps_by_switch_and_a_stop(tmp_path):
    with switches.switches(dump=str(tmp_path), stop_after="fold-constants", check="1"):
        result = passes.run(graph_of_two(), "fold-constants,canonicalize")
    assert [p.name for p in result.report.passes] == ["fold-constants"]
    assert [p.name for p in tmp_path.iterdir()] == ["00-input.ir"]


def test_a_stop_after_a_pass_that_is_not_there():
    with pytest.raises(PassError, match=r"cannot stop after 'dce'(.|\n)*canonicalize"):
        passes.run(graph_of_two(), "canonicalize", stop_after="dce")


def test_a_pass_that_breaks_the_graph_is_named():
    with pytest.raises(VerifyError, match=r"after break: operand .* is used before it is defined"):
        passes.run(graph_of_two(), [Break()], check=1)


def test_the_check_can_be_off():
    assert len(passes.run(graph_of_two(), [Break()], check=0).graph.nodes) == 3


def test_the_first_pass_that_moves_numbers_is_named():
    b = Builder()
    t = b.dim("t", 1, 8)
    x = b.input("x", (t, 4))
    graph = b.graph([b.exp(b.add(x, x))])
    with pytest.raises(VerifyError, match="spoil changed the numbers") as error:
        passes.run(graph, [*passes.parse_pipeline("canonicalize"), Spoil()], check=2)
    assert "result 0 of @main" in str(error.value)


def test_the_differential_check_holds_for_a_whole_model(variant):
    passes.run(variant, "dense", check=2)


def test_the_differential_check_follows_prepared_weights_and_pages(variant):
    chosen = passes.PIPELINES["language-model"](bf16)
    result = passes.run(variant, chosen, check=2)
    assert result.prepare is not None
    assert len(result.prepare.outputs) == len(result.graph.weights)
    for weight, output in zip(result.graph.weights, result.prepare.outputs):
        assert weight.type == output.type


def test_the_differential_check_sees_a_lost_epsilon():
    graph = decoder(layers=1)
    differential = Differential(graph)

    def without_epsilon(b, node, operands):
        is_eps = node.op.name == "full" and node.attrs["value"] == 1e-6
        return [b.constant(0.0, node.attrs["dtype"])] if is_eps else None

    broken = replace_nodes(graph, without_epsilon)
    with pytest.raises(VerifyError, match="no-eps changed the numbers"):
        differential.compare(broken, "no-eps", True, None)


def divide_and_read(b, x):
    divided = b.floordiv(x, b.input("y", (5,), i64))
    read = b.gather(b.input("table", (1,)), x, axis=0)
    return [divided, read]


def test_the_differential_check_draws_integers_that_are_fit():
    b = Builder()
    passes.run(b.graph(divide_and_read(b, b.constant(0, i64))), "canonicalize", check=2)
    b = Builder()
    graph = b.graph([b.gather(b.input("table", (1,)), b.input("x", (5,), i64), axis=0)])
    passes.run(graph, "canonicalize", check=2)
    b = Builder()
    both = b.graph(divide_and_read(b, b.input("y2", (5,), i64)))
    with pytest.raises(
        PassError, match=r"cannot run the graph(.|\n)*unfit data(.|\n)*check with 1"
    ):
        passes.run(both, "canonicalize", check=2)


def test_the_report_counts_and_explains():
    result = passes.run(decoder(layers=3), "dense", check=1)
    make_plan(result.graph, result.report)
    fired = result.report.fired
    assert fired["fuse-rms-norm: weighted"] == 7
    assert fired["fuse-rope: rotate_half"] == 6
    assert fired["fuse-gated-mlp: two_projections"] == 3
    assert fired["merge-projections: merge"] == 3
    text = str(result.report)
    assert "weighted x 7" in text
    assert "declined" in text
    assert "contract groups" in text
    data = json.loads(json.dumps(result.report.to_json()))
    assert [p["pass"] for p in data] == [p.name for p in result.report.passes]
    assert data[0].keys() == {"pass", "changed", "ms", "nodes", "fired", "declined", "notes"}


def test_passes_do_not_change_their_input():
    graph = decoder(layers=1)
    before = str(graph)
    nodes = graph.nodes
    passes.run(graph, "language-model", check=1)
    assert str(graph) == before
    assert all(isinstance(n, Node) for n in nodes)
