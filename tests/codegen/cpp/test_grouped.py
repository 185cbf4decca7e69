"""Products of rows with matrices of their own, in C++: sizes, panels, dtypes, bytes."""

import numpy as np
import pytest

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.lower import lower_group
from tilewright.codegen.templates import template_with
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.errors import IndexOutOfRange
from tilewright.ir.types import bf16, f32, f64, i8, i64
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable


def graph_of(n, k, groups, dtype, gated=False):
    b = Builder("experts")
    s = b.dim("t", 0, 2048)
    x, index = b.input("x", (s, k), dtype), b.input("index", (s,), i64)
    ws = [b.weight(name, (groups, n, k), dtype) for name in ("w", "up")[: 1 + gated]]
    if gated:
        return b.graph([b.grouped_gated_linear(x, *ws, index, activation="silu")])
    return b.graph([b.grouped_matmul(x, *ws, index, transpose_w=True)])


def running(n, k, groups, dtype, weight_dtype=None, gated=False):
    """The program and its weights."""
    graph = graph_of(n, k, groups, dtype, gated)
    rng = np.random.default_rng(3)
    ws = {w.name: rng.standard_normal(w.shape).astype(w.dtype.numpy) for w in graph.weights}
    if weight_dtype is not None:
        ws = {name: w.astype(weight_dtype.numpy).astype(w.dtype) for name, w in ws.items()}
    target = resolve_target("cpu")
    made = compile_graph(graph, ws, dense(weight_dtype), target)
    return Executable(made.program, made.weights, open_device(target)), ws


def expected(x, index, w, up=None):
    found = []
    for row, at in zip(x.astype(np.float64), index):
        y = w[at].astype(np.float64) @ row
        found.append(y if up is None else y / (1 + np.exp(-y)) * (up[at].astype(np.float64) @ row))
    return np.array(found).reshape(len(x), w.shape[1])


# whole panels, a panel that is not full, no panels; several blocks of k
SIZES = [
    (64, 300, 3, f32, None),
    (40, 33, 5, f32, bf16),
    (7, 12, 4, f32, None),
    (9, 5, 3, f64, None),
]


@pytest.mark.parametrize(("n", "k", "groups", "dtype", "stored"), SIZES)
def test_rows_meet_their_own_matrices(n, k, groups, dtype, stored):
    run, ws = running(n, k, groups, dtype, stored, gated=n == 40)
    rng = np.random.default_rng(5)
    tolerance = 1e-12 if dtype == f64 else 1e-5
    last = groups - 1
    drawn = (rng.integers(0, groups, rows) for rows in (13, 1100))
    for index in ([], [last], [0, last, 0], [1] * 30, *drawn):
        index = np.asarray(index, np.int64)
        x = rng.standard_normal((len(index), k)).astype(dtype.numpy)
        (got,) = (array.numpy() for array in run(x, index))
        want = expected(x, index, *ws.values())
        scale = np.abs(want).max(initial=1.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


def test_a_bias_of_each_matrix_is_looked_up_where_sums_are_stored():
    b = Builder("biased")
    s = b.dim("t", 0, 64)
    x, index = b.input("x", (s, 12)), b.input("index", (s,), i64)
    w, bias = b.weight("w", (4, 33, 12)), b.weight("bias", (4, 33))
    y = b.add(b.grouped_matmul(x, w, index, transpose_w=True), b.gather(bias, index))
    rng = np.random.default_rng(9)
    ws = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in (w, bias)}
    target = resolve_target("cpu")
    made = compile_graph(b.graph([y]), ws, dense(), target)
    assert len(made.plan.groups) == 1
    x, index = rng.standard_normal((9, 12)).astype(np.float32), rng.integers(0, 4, 9)
    (got,) = Executable(made.program, made.weights, open_device(target))(x, index)
    want = expected(x, index, ws["w"]) + ws["bias"][index]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_those_beside_it():
    run, _ = running(64, 300, 3, f32)
    rng = np.random.default_rng(7)
    x, index = rng.standard_normal((500, 300)).astype(np.float32), rng.integers(0, 3, 500)
    (together,) = (array.numpy() for array in run(x, index))
    for row in (0, 17, 499):
        (alone,) = (array.numpy() for array in run(x[row : row + 1], index[row : row + 1]))
        np.testing.assert_array_equal(alone[0], together[row])


def test_an_index_without_a_matrix_is_an_error():
    run, _ = running(7, 12, 4, f32)
    for wrong in (4, -1):
        with pytest.raises(IndexOutOfRange, match=r"(?s)out of range.*grouped_matmul"):
            run(np.zeros((2, 12), np.float32), np.array([1, wrong]))


def test_bytes_are_those_of_the_matrices_that_rows_have():
    n, k, groups = 64, 300, 8
    graph = graph_of(n, k, groups, f32)
    kernel = lower_group(graph, graph.nodes, {}).kernel
    traffic = template_with(kernel.parts[0]).traffic(kernel)
    for rows, chosen in ((1, 1), (5, 5), (8, 8), (100, 8)):
        wanted = chosen * n * k * 4 + rows * (k * 4 + 8 + n * 4)
        assert evaluate(traffic, {"t": rows}) == wanted


def test_matrices_stored_as_codes_are_decoded_where_they_are_read():
    groups, n, k, size = 3, 33, 64, 16
    b = Builder("codes")
    s = b.dim("t", 0, 64)
    x, index = b.input("x", (s, k)), b.input("index", (s,), i64)
    codes = b.weight("codes", (groups, n, k), i8)
    scale, zero = (b.weight(name, (groups, n, k // size)) for name in ("scale", "zero"))
    w = b.dequantize(codes, scale, zero)
    graph = b.graph([b.grouped_matmul(x, w, index, transpose_w=True)])
    rng = np.random.default_rng(11)
    shared = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in (scale, zero)}
    ws = {"codes": rng.integers(-128, 128, codes.shape).astype(np.int8), **shared}
    target = resolve_target("cpu")
    made = compile_graph(graph, ws, dense(), target)
    assert {w.type.dtype for w in made.program.weights if w.type.shape[-1] == k} == {i8}
    x, index = rng.standard_normal((9, k)).astype(np.float32), rng.integers(0, groups, 9)
    (got,) = Executable(made.program, made.weights, open_device(target))(x, index)
    wide = {name: np.repeat(array, size, -1) for name, array in shared.items()}
    want = expected(x, index, (ws["codes"] - wide["zero"]) * wide["scale"])
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-5 * np.abs(want).max())
