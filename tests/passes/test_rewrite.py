"""The driver of rules: what it matches, what it refuses, what it reports."""

import pytest

from tilewright.ir.builder import Builder
from tilewright.ir.errors import PassError
from tilewright.ir.text import print_graph
from tilewright.ir.types import f32, i64
from tilewright.ir.verify import verify
from tilewright.passes.findings import collect
from tilewright.passes.patterns import Any_, Match, Numeral, OneOf, constant_of, maybe_cast, pat
from tilewright.passes.rewrite import Decline, remove_dead, replace_nodes, rewrite, rule

x, y = Any_("x"), Any_("y")


@rule(pat.add(pat.mul(x, y), x))
def factored(b, x, y):
    """x * y + x  ->  x * exp(y)   (wrong on purpose: only the shape of the rewrite matters)"""
    return b.mul(x, b.exp(y))


def names(graph):
    return [node.op.name for node in graph.nodes]


def build(function, count=2):
    b = Builder()
    values = [b.input(f"x{i}", (4,)) for i in range(count)]
    out = function(b, *values)
    return b.graph(out if isinstance(out, (list, tuple)) else [out])


def test_a_rule_fires_in_both_orders_of_commutative_operands():
    for function in (
        lambda b, p, q: b.add(b.mul(p, q), p),
        lambda b, p, q: b.add(b.mul(q, p), p),
        lambda b, p, q: b.add(p, b.mul(q, p)),
    ):
        with collect() as found:
            after = rewrite(build(function), [factored])
        verify(after)
        assert names(after) == ["exp", "mul"]
        assert dict(found.fired) == {"factored": 1}
        exp, mul = after.nodes
        assert exp.operands == (after.inputs[1],)
        assert mul.operands == (after.inputs[0], exp.results[0])


def test_the_same_name_must_be_the_same_value():
    graph = build(lambda b, p, q: b.add(b.mul(p, p), q))
    assert rewrite(graph, [factored]) is graph


def test_a_value_used_outside_the_match_stops_the_rule_and_is_reported():
    def function(b, p, q):
        product = b.mul(p, q)
        return b.add(product, p), b.neg(product)

    graph = build(function)
    with collect() as found:
        assert rewrite(graph, [factored]) is graph
    assert found.declined == {("factored", "a value inside is also used outside"): 1}


def test_a_result_of_the_graph_counts_as_used_outside():
    def function(b, p, q):
        product = b.mul(p, q)
        return b.add(product, p), product

    graph = build(function)
    assert rewrite(graph, [factored]) is graph


def test_a_rule_may_allow_that_its_inside_is_shared():
    @rule(pat.neg(pat.neg(x)), may_share=True)
    def twice(b, x):
        """-(-x)  ->  x"""
        return x

    def function(b, p):
        inner = b.neg(p)
        return b.neg(inner), inner

    after = rewrite(build(function, 1), [twice])
    assert names(after) == ["neg"]
    assert after.outputs[0] is after.inputs[0]


def test_rules_run_until_nothing_is_left():
    @rule(pat.neg(pat.neg(x)))
    def twice(b, x):
        """-(-x)  ->  x"""
        return x

    def chain(b, p):
        for _ in range(9):
            p = b.neg(p)
        return p

    with collect() as found:
        assert names(rewrite(build(chain, 1), [twice])) == ["neg"]
    assert found.fired["twice"] == 4


def test_a_declined_match_leaves_nothing_behind_and_its_reason_in_the_report():
    @rule(pat.exp(x))
    def never(b, x):
        """exp(x)  ->  declined"""
        b.neg(x)
        return Decline("never fires")

    graph = build(lambda b, p: b.exp(p), 1)
    with collect() as found:
        assert rewrite(graph, [never]) is graph
    assert found.declined == {("never", "never fires"): 1}

    @rule(pat.neg(x))
    def flips(b, x):
        """-x  ->  abs(x)"""
        return b.abs(x)

    after = rewrite(build(lambda b, p: b.exp(b.neg(p)), 1), [never, flips])
    assert names(after) == ["abs", "exp"]


def test_a_rule_that_changes_a_type_is_a_bug_that_is_named():
    @rule(pat.neg(x))
    def shrinks(b, x):
        """-x  ->  sum(x)"""
        return b.sum(x, axes=(0,))

    graph = build(lambda b, p: b.neg(p), 1)
    with pytest.raises(PassError, match="rule shrinks changed a type"):
        rewrite(graph, [shrinks])


def test_a_pattern_of_an_unknown_op_or_attribute_is_refused_at_once():
    with pytest.raises(Exception, match="no op named 'mull'"):
        pat.mull(x, y)
    with pytest.raises(ValueError, match="pattern of reshape: no attribute 'shap'"):
        pat.reshape(x, shap=(1,))
    with pytest.raises(ValueError, match="takes 2 operands"):
        pat.mul(x)


def test_numbers_are_seen_through_views_and_casts():
    b = Builder()
    wide = b.broadcast_to(b.constant(2, i64), shape=(3,))
    assert constant_of(wide) == 2
    assert constant_of(b.cast(wide, dtype=f32)) is None  # another kind of number
    assert constant_of(b.iota(length=3)) is None
    p = b.input("p", (3,), i64)
    power = b.mul(p, wide)
    (match,) = pat.mul(x, Numeral("n")).match(power, Match())
    assert match.bound == {"x": p, "n": 2}
    assert not list(pat.mul(x, Numeral(value=3)).match(power, Match()))


def test_optional_casts_and_alternatives():
    b = Builder()
    p = b.input("p", (3,))
    pattern = pat.exp(maybe_cast(OneOf(pat.neg(x), pat.abs(x))))
    for inner in (b.neg(p), b.abs(p)):
        for value in (b.exp(inner), b.exp(b.cast(inner, dtype=f32))):
            assert [m.bound["x"] for m in pattern.match(value, Match())] == [p]
    assert not list(pattern.match(b.exp(b.sqrt(p)), Match()))


def test_nodes_before_the_first_change_are_shared_not_copied():
    graph = build(lambda b, p, q: b.neg(b.add(b.mul(b.exp(p), q), b.exp(p))))
    before = graph.nodes[0]
    with_match = build(lambda b, p, q: b.add(b.mul(p, q), b.exp(q)))
    assert rewrite(with_match, [factored]) is with_match
    after = replace_nodes(
        graph, lambda b, node, ops: [b.abs(*ops)] if node.op.name == "neg" else None
    )
    assert after.nodes[0] is before
    assert names(after) == [*names(graph)[:-1], "abs"]


def test_dead_nodes_go_and_nothing_else():
    graph = build(lambda b, p, q: [b.exp(p)] if b.neg(q) else [])
    after = remove_dead(graph)
    assert names(after) == ["exp"]
    assert remove_dead(after) is after
    assert print_graph(after).count("input") == 2
