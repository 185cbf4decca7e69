"""The verifier: each broken invariant is found, named, and shown with the nodes around it."""

import pytest

from tilewright.ir.builder import Builder
from tilewright.ir.errors import ShapeError, VerifyError
from tilewright.ir.graph import Node, Value
from tilewright.ir.op import get_op
from tilewright.ir.types import TensorType, f32, i32
from tilewright.ir.verify import verify


def chain(count=5):
    b = Builder("g")
    t = b.dim("t", 1, 9)
    x = b.input("x", (t, 4))
    for _ in range(count):
        x = b.neg(x)
    return b.graph([x])


def pool(b):
    t, pages = b.dim("t", 1, 9), b.dim("pages", 1, 9)
    kv = b.state("kv", (pages, 1, 4, 2))
    return kv, b.input("k", (t, 1, 2)), b.input("slots", (t,), i32)


def test_a_sound_graph_passes():
    verify(chain())
    b = Builder()
    kv, k, slots = pool(b)
    b.updates["kv"] = b.kv_append(b.kv_append(kv, k, slots), k, slots)
    verify(b.graph([k]))


def test_a_use_before_the_definition():
    graph = chain()
    nodes = (graph.nodes[1], graph.nodes[0], *graph.nodes[2:])
    with pytest.raises(VerifyError, match="is used before it is defined") as error:
        verify(graph.replace(nodes=nodes))
    assert error.value.where == "node 0 of @g"
    # three nodes on either side, the culprit marked
    assert error.value.facts.splitlines()[0].startswith("> %0 = neg(")
    assert len(error.value.facts.splitlines()) == 4


def test_a_type_that_the_rule_does_not_give():
    graph = chain(1)
    (x,) = graph.inputs
    wrong = Node(get_op("neg"), (x,), {}, (Value(x.type.with_dtype(i32)),), loc="layers.0")
    with pytest.raises(VerifyError, match=r"types are i32\[t, 4\], the rule gives f32") as error:
        verify(graph.replace(nodes=(wrong,), outputs=wrong.results))
    assert error.value.where == "node 0 of @g (layers.0)"


def test_operands_that_the_rule_refuses():
    graph = chain(1)
    (x,) = graph.inputs
    wrong = Node(get_op("add"), (x,), {}, (Value(x.type),))
    with pytest.raises(VerifyError, match=r"add: takes 2 operands \(x, y\), got 1"):
        verify(graph.replace(nodes=(wrong,), outputs=wrong.results))


def test_an_output_that_is_not_in_the_graph():
    graph = chain()
    with pytest.raises(VerifyError, match="an output or update is not defined"):
        verify(graph.replace(nodes=graph.nodes[:-1]))


def test_undeclared_symbols_and_negative_sizes():
    graph = chain()
    with pytest.raises(VerifyError, match=r"x: f32\[t, 4\] uses undeclared symbols \['t'\]"):
        verify(graph.replace(symbols={}))
    b = Builder()
    t = b.dim("t", 0, 9)
    b.input("x", (t - 1, 4))
    with pytest.raises(VerifyError, match=r"t - 1 is not proved to be 0 or more(.|\n)*\(-1, 8\)"):
        verify(b.graph([]))


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (0, 10, "slice reads 0 to 9 of an axis of t: not proved inside"),
        (lambda t: t - 2, lambda t: t, r"slice reads t - 2 to t - 1 of an axis of t: not proved"),
    ],
)
def test_slices_are_proved_inside(start, stop, message):
    b = Builder()
    t = b.dim("t", 1, 9)
    x = b.input("x", (t, 4))
    start, stop = (v(t) if callable(v) else v for v in (start, stop))
    with pytest.raises(VerifyError, match=message):
        verify(b.graph([b.slice(x, axis=0, start=start, stop=stop)]))


def test_names_are_unique():
    b = Builder()
    b.input("x", (1,))
    b.state("x", (1,))
    with pytest.raises(VerifyError, match=r"names of inputs and states are not unique"):
        verify(b.graph([]))
    b = Builder()
    b.weight("w", (1,))
    b.weight("w", (1,))
    with pytest.raises(VerifyError, match="two weights have one name"):
        verify(b.graph([]))


def test_a_state_is_consumed_once():
    b = Builder()
    kv, k, slots = pool(b)
    b.kv_append(kv, k, slots)
    b.updates["kv"] = b.kv_append(kv, k, slots)
    with pytest.raises(VerifyError, match="a state is used after kv_append consumed it"):
        verify(b.graph([]))


def test_a_state_op_needs_a_state():
    b = Builder()
    kv, k, slots = pool(b)
    other = b.input("other", kv.shape)
    b.kv_append(other, k, slots)
    with pytest.raises(VerifyError, match="which is not a state"):
        verify(b.graph([]))


def test_updates_are_of_states_and_of_their_type():
    graph = chain()
    with pytest.raises(VerifyError, match="update of 'kv', which is not a state"):
        verify(graph.replace(updates={"kv": graph.outputs[0]}))
    b = Builder()
    kv, k, slots = pool(b)
    with pytest.raises(VerifyError, match=r"update of 'kv': f32\[t, 1, 2\] for f32\[pages"):
        verify(b.graph([]).replace(updates={"kv": k}))
    b.kv_append(kv, k, slots)
    with pytest.raises(VerifyError, match="update of 'kv' is a value that kv_append consumed"):
        verify(b.graph([]).replace(updates={"kv": kv}))


def test_a_result_belongs_to_one_node():
    graph = chain(1)
    with pytest.raises(AssertionError, match="a result belongs to one node"):
        Node(get_op("neg"), graph.inputs, {}, graph.outputs)


def test_an_unknown_weight_output_is_defined():
    b = Builder()
    w = b.weight("w", (2,))
    verify(b.graph([w, w]))
    assert b.graph([w]).is_weight(w)
    assert not b.graph([w]).is_weight(Value(TensorType((2,), f32)))


@pytest.mark.parametrize(("size", "step"), [(1, 1), (3, 1), (3, 2), (4, 5)])
def test_slices_and_windows_with_steps_are_proved_inside(size, step):
    b = Builder()
    t = b.dim("t", size, 99)
    x = b.input("x", (t, 4))
    seen = b.window(x, axis=0, size=size, step=step)
    verify(b.graph([seen, b.slice(x, axis=0, start=1, stop=t, step=step)]))


def test_windows_longer_than_the_axis_are_refused():
    b = Builder()
    x = b.input("x", (b.dim("t", 1, 99), 4))
    with pytest.raises(VerifyError, match="not proved to be 0 or more"):
        verify(b.graph([b.window(x, axis=0, size=4)]))
    with pytest.raises(ShapeError, match="a window of 9, 1 apart, is longer than axis 1"):
        b.window(x, axis=1, size=9)
