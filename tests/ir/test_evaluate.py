"""The reference evaluator: precision, states, weights on demand, and wrong references."""

import numpy as np
import pytest

from tilewright.ir.builder import Builder
from tilewright.ir.errors import DimError, ShapeError
from tilewright.ir.evaluate import evaluate
from tilewright.ir.op import OPS
from tilewright.ir.types import bf16, f32, i32


def test_floats_are_not_rounded_unless_asked():
    b = Builder()
    x = b.input("x", (3,), bf16)
    graph = b.graph([b.add(x, b.constant(0.1, bf16))])
    given = np.array([1.0, 2.0, 1 / 3])
    (wide,), _ = evaluate(graph, {"x": given})
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide, given + 0.1)
    (rounded,), _ = evaluate(graph, {"x": given}, precision=None)
    assert rounded.dtype == bf16.numpy
    tenth = bf16.numpy.type(0.1).astype(np.float32)
    expected = given.astype(bf16.numpy).astype(np.float32) + tenth
    np.testing.assert_array_equal(rounded, expected.astype(bf16.numpy))


def test_half_precision_sums_are_made_in_float32():
    b = Builder()
    x = b.input("x", (1024,), bf16)
    graph = b.graph([b.sum(x, axes=(0,))])
    (total,), _ = evaluate(graph, {"x": np.ones(1024)}, precision=None)
    assert float(total) == 1024  # in bf16 the sum stops at 256


def test_weights_are_loaded_when_needed_and_only_those():
    b = Builder()
    w, _ = b.weight("w", (2,)), b.weight("unread", (2,))
    asked = []

    def load(name):
        asked.append(name)
        return np.array([1.0, 2.0])

    (out, same), _ = evaluate(b.graph([b.neg(w), w]), {}, load)
    np.testing.assert_array_equal(out, [-1, -2])
    np.testing.assert_array_equal(same, [1, 2])
    assert set(asked) == {"w"}


def test_states_are_returned_and_the_given_ones_unchanged():
    b = Builder()
    t, pages = b.dim("t", 1, 9), b.dim("pages", 1, 9)
    k, slots = b.input("k", (t, 1, 2)), b.input("slots", (t,), i32)
    kv, other = b.state("kv", (pages, 1, 4, 2)), b.state("other", (2,))
    b.updates["kv"] = b.kv_append(kv, k, slots)
    before = {"kv": np.zeros((2, 1, 4, 2)), "other": np.array([5.0, 6.0])}
    inputs = {"k": np.arange(6.0).reshape(3, 1, 2), "slots": np.array([5, -1, 0], np.int32)}
    outputs, after = evaluate(b.graph([k]), inputs, states=before)
    assert not before["kv"].any()
    np.testing.assert_array_equal(outputs[0], inputs["k"])
    np.testing.assert_array_equal(after["kv"][1, 0, 1], [0, 1])
    np.testing.assert_array_equal(after["kv"][0, 0, 0], [4, 5])
    assert np.count_nonzero(after["kv"]) == 1 + 2
    np.testing.assert_array_equal(after["other"], before["other"])
    assert other.name == "other"


def test_sizes_are_bound_and_checked():
    b = Builder()
    t = b.dim("t", 1, 4)
    x = b.input("x", (t, 2))
    graph = b.graph([b.broadcast_to(b.dim_value(value=3 * t), shape=(t,)), b.iota(length=t + 1), x])
    outputs, _ = evaluate(graph, {"x": np.zeros((3, 2))})
    np.testing.assert_array_equal(outputs[0], [9, 9, 9])
    np.testing.assert_array_equal(outputs[1], [0, 1, 2, 3])
    with pytest.raises(DimError, match=r"dim t \(x axis 0\) is 5"):
        evaluate(graph, {"x": np.zeros((5, 2))})


def test_a_reference_of_the_wrong_shape_is_an_error(monkeypatch):
    b = Builder()
    x = b.input("x", (2, 3))
    graph = b.graph([b.sum(x, axes=(0,))])
    monkeypatch.setattr(OPS["sum"], "reference", lambda x, axes, keepdims: x)
    with pytest.raises(ShapeError, match=r"sum: reference gave \(2, 3\), type says \(3,\)"):
        evaluate(graph, {"x": np.zeros((2, 3))})


def test_an_op_without_a_reference_runs_its_decomposition():
    b = Builder()
    x, cos, sin = (b.input(n, (3, 4)) for n in ("x", "cos", "sin"))
    assert OPS["rope"].reference is None
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((3, 4)) for n in ("x", "cos", "sin")}
    (out,), _ = evaluate(b.graph([b.rope(x, cos, sin)]), given)
    half = np.concatenate([-given["x"][:, 2:], given["x"][:, :2]], 1)
    np.testing.assert_allclose(out, given["x"] * given["cos"] + half * given["sin"])
    assert f32.bits == 32
