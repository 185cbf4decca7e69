"""Building graphs: types inferred, errors in the user's terms, rebuilding with sharing."""

import pytest

from tilewright.ir.builder import Builder, Rebuilder
from tilewright.ir.errors import ShapeError, UnsupportedOp
from tilewright.ir.op import broadcast_shapes, get_op, normalize_axis, op
from tilewright.ir.types import DTYPES, TensorType, bf16, bool_, dtype_of, f32, i64
from tilewright.ir.verify import verify


@pytest.fixture
def b():
    return Builder("g")


def test_types_are_inferred_and_attributes_completed(b):
    t = b.dim("t", 1, 9)
    x = b.input("x", (t, 8))
    y = b.sum(x, axes=(-1,))
    assert y.type == TensorType((t,), f32)
    assert dict(y.node.attrs) == {"axes": (-1,), "keepdims": False}
    assert y.node.result is y
    assert y.type.numel == t
    assert y.type.nbytes == 4 * t


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda b, x: b.add(x, b.input("y", (3,))),
            r"add: shapes \[t, 8\], \[3\] do not broadcast",
        ),
        (lambda b, x: b.add(x, b.input("y", (8,), i64)), "add: dtypes differ(.|\n)*x is f32"),
        (lambda b, x: b.exp(b.input("y", (3,), i64)), "exp: x is i64.3.: needs a float dtype"),
        (lambda b, x: b.neg(b.input("y", (3,), bool_)), "neg: x is bool.3.: needs a number dtype"),
        (lambda b, x: b.add(x), r"add: takes 2 operands \(x, y\), got 1"),
        (lambda b, x: b.concat(axis=0), "concat: needs at least one operand"),
        (lambda b, x: b.sum(x), "sum: needs 'axes'(.|\n)*axes, keepdims"),
        (lambda b, x: b.sum(x, axes=(0,), keep=True), "sum: no attribute 'keep'"),
        (lambda b, x: b.sum(x, axes=(2,)), "sum: axis 2 of a value of rank 2"),
        (lambda b, x: b.sum(x, axes=()), "sum: axes is empty"),
        (lambda b, x: b.reshape(x, shape=(4, 2)), r"8\*t elements; \[4, 2\] has 8"),
        (lambda b, x: b.transpose(x, perm=(0, 0)), "is not a permutation of the 2 axes"),
        (lambda b, x: b.broadcast_to(x, shape=(8,)), "does not broadcast to"),
        (lambda b, x: b.slice(x, axis=1, start=3, stop=2), "start 3 is after stop 2"),
        (lambda b, x: b.slice(x, axis=1, start=0, stop=2, step=0), "step is 0"),
        (lambda b, x: b.concat(x, b.input("y", (3, 7)), axis=0), "parts differ outside axis 0"),
        (lambda b, x: b.gather(x, x), "must be integers"),
        (lambda b, x: b.where(x, x, x), "condition is f32(.|\n)*must be bool"),
        (lambda b, x: b.and_(x, x), "needs bool or integers"),
        (lambda b, x: b.any(x, axes=(0,)), "must be bool"),
        (
            lambda b, x: b.matmul(x, b.weight("w", (16, 8))),
            "inner dimensions differ: 8 and 16; w looks stored the other way: transpose_w",
        ),
        (lambda b, x: b.matmul(x, b.weight("w", (16, 4))), "inner dimensions differ: 8 and 16"),
        (lambda b, x: b.matmul(x, b.weight("w", (8,))), "both need rank 2 or more"),
        (lambda b, x: b.matmul(x, b.weight("w", (8, 8), bf16)), "dtypes differ; cast one of them"),
        (lambda b, x: b.rms_norm(x, b.weight("w", (4,))), r"weight must be f32\[8\]"),
        (lambda b, x: b.rope(x, x, b.weight("s", (3, 8))), "must broadcast to x"),
        (lambda b, x: b.rope(b.input("y", (3, 7)), x, x), "must be a known even number"),
        (
            lambda b, x: b.gated_linear(x, *[b.weight("w", (4, 8))] * 2, activation="sin"),
            "activation 'sin' is not one of",
        ),
        (
            lambda b, x: b.attention(*[b.input("q", (1, 3, 4, 8))], *[x] * 2, scale=1.0),
            "need one dtype and rank 3 or more",
        ),
        (
            lambda b, x: b.attention(
                b.input("q", (1, 3, 4, 8)), *[b.input("k", (1, 2, 4, 8))] * 2, scale=1.0
            ),
            "3 query heads are not a multiple of 2 KV heads",
        ),
    ],
)
def test_errors_name_the_op_and_what_disagrees(b, make, message):
    x = b.input("x", (b.dim("t", 1, 9), 8))
    with pytest.raises(ShapeError, match=message):
        make(b, x)


def test_unknown_ops_suggest_near_names(b):
    with pytest.raises(UnsupportedOp, match=r"no op named 'rms_nrom'(.|\n)*did you mean rms_norm"):
        b.rms_nrom()
    with pytest.raises(UnsupportedOp, match=r"see docs/ops.md"):
        get_op("zzzzzz")
    with pytest.raises(AttributeError):
        b._private  # noqa: B018


def test_an_op_is_declared_once():
    with pytest.raises(ValueError, match="op add is declared twice"):

        @op(kind="view")
        def add(x):
            return x

    with pytest.raises(ValueError, match=r"op strange needs a kind: .*elementwise"):

        @op
        def strange(x):
            return x


def test_a_norm_needs_an_axis(b):
    x = b.input("one", (), f32)
    for norm in (lambda: b.rms_norm(x, x), lambda: b.layer_norm(x, x, x)):
        with pytest.raises(ShapeError, match="runs over the last axis, and it has none"):
            norm()


def test_broadcasting_never_takes_a_symbol_for_one(b):
    t = b.dim("t", 1, 9)
    assert broadcast_shapes((t, 1), (4,)) == (t, 4)
    assert broadcast_shapes((1, t), (t, 1)) == (t, t)
    with pytest.raises(TypeError, match="do not broadcast"):
        broadcast_shapes((t,), (4,))


def test_axes_count_from_either_end():
    assert [normalize_axis(a, 3) for a in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    with pytest.raises(TypeError, match="axis 3 of a value of rank 3"):
        normalize_axis(3, 3)


def test_uses_and_results(b):
    x = b.input("x", (4,))
    y = b.mul(x, x)
    graph = b.graph([y])
    assert graph.uses[x] == (y.node, y.node)
    assert graph.results == {y}
    assert list(graph.arguments()) == [x]


def test_places_are_scoped(b):
    x = b.input("x", (4,))
    with b.at("outer"):
        first = b.neg(x)
        with b.at("inner"):
            second = b.neg(x)
        third = b.neg(x)
    assert [v.node.loc for v in (first, second, third, b.neg(x))] == [
        "outer", "inner", "outer", None,
    ]  # fmt: skip


def rebuilt(graph, change):
    new = Rebuilder(graph)
    for node in graph.nodes:
        if not change(new, node):
            new.copy(node)
    return new.finish()


def test_a_copy_of_everything_shares_every_node(b):
    x = b.input("x", (4,))
    graph = b.graph([b.exp(b.neg(x))])
    again = rebuilt(graph, lambda new, node: False)
    assert again.nodes == graph.nodes
    assert again.outputs == graph.outputs


def test_what_follows_a_change_is_new_and_keeps_its_types(b):
    x = b.input("x", (4,))
    with b.at("layers.1"):
        y = b.exp(b.neg(b.abs(x)))
    graph = b.graph([y])

    def change(new, node):
        if node.op.name != "neg":
            return False
        new[node.results[0]] = new.sqrt(new[node.operands[0]])
        return True

    after = rebuilt(graph, change)
    verify(after)
    verify(graph)
    assert [n.op.name for n in after.nodes] == ["abs", "sqrt", "exp"]
    assert after.nodes[0] is graph.nodes[0]
    assert after.nodes[2] is not graph.nodes[2]
    assert after.nodes[2].loc == "layers.1"
    assert graph.outputs[0].node is graph.nodes[2]


def test_types_are_inferred_again_where_operands_changed(b):
    x = b.input("x", (4,))
    graph = b.graph([b.neg(b.exp(x))])

    def change(new, node):
        if node.op.name != "exp":
            return False
        new[node.results[0]] = new.cast(new[node.operands[0]], dtype=bf16)
        return True

    assert rebuilt(graph, change).outputs[0].dtype is bf16


def test_dtypes():
    for name, dtype in DTYPES.items():
        assert str(dtype) == name
        assert dtype_of(dtype.numpy) is dtype
        assert dtype.nbytes * 8 == max(dtype.bits, 8)
    assert bf16.is_float
    assert not bf16.is_integer
    assert DTYPES["u8"].is_integer
    assert not DTYPES["bool"].is_integer
