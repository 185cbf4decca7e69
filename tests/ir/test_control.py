"""Graphs with sub-graphs and with sizes that nodes bind: text, verifier, reference, dead code."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.builder import Builder
from tilewright.ir.dim import Symbol, symbol
from tilewright.ir.errors import DimError, ParseError, ShapeError, VerifyError
from tilewright.ir.evaluate import evaluate
from tilewright.ir.graph import Graph
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph
from tilewright.ir.types import bool_, f32, i64
from tilewright.ir.verify import verify
from tilewright.passes.rewrite import remove_dead

N = symbol("n")
TEXT = """\
graph @running
  dim n in [0, 100]
  dim found in [0, ]
  input %x : f32[n, 3]
  input %p : bool[]
{
  %0 = full() {value=0.0, shape=[3], dtype=f32} : f32[3]
  %1, %2 = scan(%0, %x) {carried=1, stacked=1, count=n} : f32[3], f32[n, 3]
    body = graph @step
      dim n in [0, 100]
      input %sum : f32[3]
      input %row : f32[3]
    {
      %0 = add(%sum, %row) : f32[3]
      return %0, %0
    }
  %3 = cond(%p, %2) : f32[n, 3]
    then = graph @then
      dim n in [0, 100]
      input %x : f32[n, 3]
    {
      %0 = neg(%x) : f32[n, 3]
      return %0
    }
    otherwise = graph @otherwise
      dim n in [0, 100]
      input %x : f32[n, 3]
    {
      return %x
    }
  %4 = nonzero(%3) {binds=['found']} : i64[found, 2]
  %5, %6 = call(%x) {function='my.op', results=[f32[n, 2*n], i64[]]} : f32[n, 2*n], i64[]
  return %3, %4
}
"""


def running() -> Graph:
    return parse_graph(TEXT)


def test_text_with_sub_graphs_is_read_back():
    graph = running()
    verify(graph)
    text = print_graph(graph)
    assert text == TEXT
    assert print_graph(parse_graph(text)) == text
    assert graph.late_symbols == {"found"}
    assert [sorted(node.regions) for node in graph.nodes[1:3]] == [["body"], ["otherwise", "then"]]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("body = graph @step", "loop = graph @step", "expected body = graph @name"),
        ("return %0, %0", "return %0, %x", "%x is not defined before this line"),
        ("return %0, %0", "return", "scan: body gives nothing; carried are f32[3]"),
        ("count=n}", "count=4}", "a stacked operand is f32[n, 3]: its axis 0 must be 4"),
        ("carried=1", "carried=3", "3 of 2 operands are carried"),
        ("results=[f32[n", "results=[f3[n", "attribute results: 'f3[n, 2*n]' is not a type"),
        ("input %sum : f32[3]", "input %sum : f32[1]", "body takes f32[1], f32[3]; given are f32"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(old, new, says):
    text = print_graph(running())
    assert old in text
    with pytest.raises((ParseError, ShapeError), match=re.escape(says)):
        parse_graph(text.replace(old, new))


def test_sub_graphs_lie_in_one_another_up_to_a_bound():
    def nested(depth):
        b = Builder("nested")
        p, x = b.input("p", (), bool_), b.input("x", (2,))
        if depth:
            x = b.cond(p, p, x, then=nested(depth - 1), otherwise=nested(0))
        return b.graph([x])

    graph = nested(5)
    verify(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    with pytest.raises(ParseError, match="more than 32 deep"):
        parse_graph(print_graph(nested(33)))


def test_the_reference_runs_sub_graphs():
    graph = running()
    graph = graph.replace(nodes=graph.nodes[:-1])  # a call of nothing that is registered
    x = np.array([[1, 0, 2], [-1, 0, 0]], np.float32)
    for p in (True, False):
        (y, found), _ = evaluate(graph, {"x": x, "p": np.array(p)})
        np.testing.assert_array_equal(y, np.cumsum(x, 0) * (-1 if p else 1))
        np.testing.assert_array_equal(found, np.argwhere(y))
    narrow = graph.replace(symbols={**graph.symbols, "found": Symbol("found", 0, 2)})
    with pytest.raises(DimError, match=r"nonzero axis 0\) is 3, its range is \[0, 2\]"):
        evaluate(narrow, {"x": x, "p": np.array(True)})


def late(b: Builder):
    x = b.input("x", (5,), f32)
    b.dim("found", lo=0)
    return x, b.nonzero(x, binds=("found",))


def test_a_dim_is_bound_once_and_before_its_use():
    b = Builder("late")
    x, found = late(b)
    ones = b.full(value=1, shape=(symbol("found"), 1), dtype=i64)
    graph = b.graph([b.add(found, ones)])
    verify(graph)
    bind, full, add = graph.nodes
    for nodes, says in [
        ((full, bind, add), "dim found is bound only later"),
        ((bind, *_again(x), full, add), "dim found is bound twice"),
    ]:
        with pytest.raises(VerifyError, match=says):
            verify(graph.replace(nodes=nodes))
    with pytest.raises(VerifyError, match="binds found, which is not declared"):
        verify(graph.replace(symbols={}, nodes=(bind,), outputs=()))


def _again(x):
    b = Builder("again")
    b.nonzero(x, binds=("found",))
    return b.nodes


@pytest.mark.parametrize(
    ("symbols", "says"),
    [
        ({"n": Symbol("n", 0, 9)}, "declared around it as"),
        ({"n": Symbol("n", 0, 100), "m": Symbol("m")}, "declared around it as None"),
    ],
)
def test_dims_of_a_sub_graph_are_those_around_it(symbols, says):
    graph = running()
    scan = graph.nodes[1]
    body = scan.attrs["body"]
    b = Builder("outer", graph.symbols.values())
    x, c = b.input("x", (N, 3)), b.input("c", (3,))
    b.scan(c, x, carried=1, stacked=1, count=N, body=body.replace(symbols=symbols))
    with pytest.raises(VerifyError, match=says):
        verify(replace(b.graph([]), symbols={"n": graph.symbols["n"]}))


def test_a_fault_inside_a_sub_graph_says_where():
    graph = running()
    body = graph.nodes[1].attrs["body"]
    cut = body.replace(nodes=())  # what it returns is not there
    b = Builder("outer", graph.symbols.values())
    x, c = b.input("x", (N, 3)), b.input("c", (3,))
    b.scan(c, x, carried=1, stacked=1, count=N, body=cut)
    with pytest.raises(VerifyError, match=r"not defined in the graph(.|\n)*at body"):
        verify(b.graph([]))


def test_what_binds_a_needed_dim_is_not_dead():
    b = Builder("late")
    late(b)
    graph = b.graph([b.full(value=1.0, shape=(symbol("found"),), dtype=f32)])
    assert [n.op.name for n in remove_dead(graph).nodes] == ["nonzero", "full"]
    graph = graph.replace(outputs=graph.inputs)
    assert not remove_dead(graph).nodes
