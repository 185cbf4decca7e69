"""Lowering against the reference: the loop IR of a group computes what its nodes compute."""

import numpy as np
import pytest

from tilewright.autotune.reference import run_kernel
from tilewright.codegen.loops import SUM
from tilewright.codegen.lower import lower_group
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.types import TensorType, bf16, f32, i32, i64


def random(rng, type: TensorType, sizes):
    shape = [d if isinstance(d, int) else sizes[str(d)] for d in type.shape]
    if type.dtype.is_float:
        return rng.standard_normal(shape)
    return rng.integers(0, 3, shape).astype(type.dtype.numpy)


def check(b: Builder, outputs, sizes, arrays=None, updates=None):
    """Lower everything as one group, run it, and compare outputs and states."""
    b.updates = dict(updates or {})
    graph = b.graph(outputs)
    rng = np.random.default_rng(0)
    given = {v.name: random(rng, v.type, sizes) for v in graph.arguments()}
    given.update(arrays or {})
    kinds = [
        {v.name: given[v.name] for v in group}
        for group in (graph.inputs, graph.weights, graph.states)
    ]
    expected, states = evaluate(graph, *kinds)
    low = lower_group(graph, graph.nodes, {})
    flat = []
    for value in low.values:
        if value is None:
            flat.append(np.zeros(2 * len(low.checks), np.int64))
        elif value.name is not None:
            flat.append(given[value.name].reshape(-1).copy())
        else:
            size = np.prod(
                [d if isinstance(d, int) else sizes[str(d)] for d in value.shape], dtype=int
            )
            flat.append(
                np.full(size, 77, np.float64 if value.dtype.is_float else value.dtype.numpy)
            )
    run_kernel(low.kernel, flat, sizes)
    for value, array in zip(graph.outputs, expected):
        got = flat[low.values.index(value)]
        np.testing.assert_allclose(got, array.reshape(-1), rtol=1e-9, atol=1e-12)
    for value in graph.states:
        got = flat[low.values.index(value)]
        np.testing.assert_allclose(got, states[value.name].reshape(-1), rtol=1e-9)
    return low.kernel


SIZES = [1, 7, 64]


@pytest.mark.parametrize("t", SIZES)
def test_pointwise_with_views(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (1, s, 24))
    heads = b.transpose(b.reshape(x, shape=(1, s, 3, 8)), perm=(0, 2, 1, 3))
    low, high = (b.slice(heads, axis=-1, start=a, stop=a + 4) for a in (0, 4))
    y = b.silu(b.concat(b.neg(high), low, axis=-1))
    z = b.reshape(b.transpose(y, perm=(0, 2, 1, 3)), shape=(1, s, 24))
    kernel = check(b, [b.add(z, x)], {"t": t})
    assert kernel.template == "pointwise"


@pytest.mark.parametrize("t", SIZES)
def test_rope_and_append_share_a_kernel(t):
    b = Builder()
    s, pages = b.dim("t", 1, 512), b.dim("pages", 1)
    qkv = b.input("qkv", (1, s, 32))
    cos, sin = b.input("cos", (1, s, 8)), b.input("sin", (1, s, 8))
    slots = b.input("slots", (s,), i32)
    pools = [b.state(name, (pages, 1, 4, 8)) for name in "kv"]
    tables = [b.reshape(v, shape=(1, 1, s, 8)) for v in (cos, sin)]

    def heads(start, count):
        part = b.slice(qkv, axis=-1, start=start, stop=start + 8 * count)
        return b.transpose(b.reshape(part, shape=(1, s, count, 8)), perm=(0, 2, 1, 3))

    def flat(x, count):
        return b.reshape(b.transpose(x, perm=(0, 2, 1, 3)), shape=(s, count, 8))

    q = flat(b.rope(heads(0, 2), *tables), 2)
    k = flat(b.rope(heads(16, 1), *tables), 1)
    values = flat(heads(24, 1), 1)
    new = {p.name: b.kv_append(p, x, slots) for p, x in zip(pools, (k, values), strict=True)}
    place = np.random.default_rng(1).permutation(80)[:t].astype(np.int32)
    place[t // 2] = -1 if t > 1 else place[0]
    kernel = check(b, [q], {"t": t, "pages": 20}, {"slots": place}, new)
    assert len(kernel.parts) == 2


@pytest.mark.parametrize("t", SIZES)
def test_embedding_through_a_cast(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    ids = b.input("ids", (1, s), i64)
    table = b.weight("table", (5, 16), bf16)
    check(b, [b.gather(b.cast(table, dtype=f32), ids)], {"t": t})


@pytest.mark.parametrize("t", SIZES)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_norms(t, name):
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (1, s, 2, 8))
    weights = [b.weight(n, (8,)) for n in ("w", "b")]
    if name == "softmax":
        y = b.softmax(x)
    else:
        y = getattr(b, name)(x, *weights[: 1 + (name == "layer_norm")])
    z = b.transpose(b.mul(y, x), perm=(0, 2, 1, 3))
    check(b, [z], {"t": t})


@pytest.mark.parametrize("t", SIZES)
def test_reductions_of_rows(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (s, 33))
    outputs = [
        b.argmax(x, axis=-1),
        b.max(x, axes=(1,)),
        b.mean(b.exp(x), axes=(-1,), keepdims=True),
    ]
    check(b, outputs, {"t": t})


@pytest.mark.parametrize("t", SIZES)
def test_reduction_of_two_axes(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (s, 3, 5))
    check(b, [b.sub(x, b.mean(x, axes=(1, 2), keepdims=True))], {"t": t})


@pytest.mark.parametrize("t", SIZES)
def test_cumsum(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    check(b, [b.cumsum(b.input("x", (2, s)), axis=1)], {"t": t})


@pytest.mark.parametrize("t", SIZES)
def test_norm_folds_into_the_contraction(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    x, r = b.input("x", (1, s, 16)), b.input("r", (1, s, 24))
    w = b.cast(b.weight("w", (24, 16), bf16), dtype=f32)
    y = b.matmul(b.rms_norm(x, b.weight("g", (16,))), w, transpose_w=True)
    kernel = check(b, [b.add(b.add(y, b.weight("bias", (24,))), r)], {"t": t})
    (part,) = kernel.parts
    assert [stat.combine for stat in part.stats] == [SUM]
    assert part.w_dtype == bf16
    assert part.x_dtype == f32


@pytest.mark.parametrize("t", SIZES)
def test_gated_linear(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (2, s, 16))
    ws = [b.weight(n, (24, 16)) for n in ("gate", "up")]
    check(
        b,
        [b.gated_linear(b.rms_norm(x, b.weight("g", (16,))), *ws, activation="gelu_tanh")],
        {"t": t},
    )


@pytest.mark.parametrize("t", SIZES)
def test_epilogue_that_splits_heads(t):
    b = Builder()
    s, n = b.dim("t", 1, 512), b.dim("n", 1, 8)
    x = b.input("x", (n, s, 16))
    y = b.matmul(x, b.weight("w", (24, 16)), transpose_w=True)
    check(b, [b.transpose(b.reshape(y, shape=(n, s, 3, 8)), perm=(0, 2, 1, 3))], {"t": t, "n": 2})


@pytest.mark.parametrize("t", SIZES)
@pytest.mark.parametrize("followed", [False, True])
def test_epilogue_whose_index_is_not_simplified_through_views(t, followed):
    b = Builder()
    y = b.matmul(b.input("x", (t, 2, 8)), b.weight("w", (3, 8)), transpose_w=True)
    y = b.reshape(b.transpose(y, perm=(1, 0, 2)), shape=(2, 3 * t))
    y = b.reshape(b.reshape(y, shape=(2, t, 3)), shape=(2 * t, 3))
    check(b, [b.mul(y, b.input("z", (2 * t, 3))) if followed else y], {})


@pytest.mark.parametrize("t", SIZES)
def test_batched_scores(t):
    b = Builder()
    s = b.dim("t", 1, 512)
    q, k = b.input("q", (2, 4, s, 8)), b.input("k", (2, 1, s, 8))
    k = b.broadcast_to(k, shape=(2, 4, s, 8))
    y = b.mul(b.matmul(q, k, transpose_w=True), b.constant(0.5, f32))
    seen = b.le(
        b.reshape(b.iota(length=s), shape=(1, s)), b.reshape(b.iota(length=s), shape=(s, 1))
    )
    check(b, [b.where(seen, y, b.constant(float("-inf"), f32))], {"t": t})


def test_paged_attention_reads_a_slice_of_a_wider_tensor():
    b = Builder()
    s, n, pages, width = (b.dim(name, 1) for name in ("t", "n", "pages", "width"))
    starts = n + 1
    qkv = b.input("qkv", (s, 32))
    q = b.reshape(b.slice(qkv, axis=1, start=8, stop=24), shape=(s, 2, 8))
    k, v = b.state("k", (pages, 1, 4, 8)), b.state("v", (pages, 1, 4, 6))
    meta = [
        b.input(name, shape, i32)
        for name, shape in (("table", (n, width)), ("starts", (starts,)), ("lens", (n,)))
    ]
    out = b.paged_attention(q, k, v, *meta, scale=0.3, window=5, softcap=2.0)
    arrays = {
        "table": np.array([[3, 1, 0], [2, 5, 4]], np.int32),
        "starts": np.array([0, 1, 8], np.int32),
        "lens": np.array([6, 9], np.int32),
    }
    sizes = {"t": 8, "n": 2, "pages": 6, "width": 3, "n + 1": 3}
    kernel = check(b, [out], sizes, arrays)
    assert kernel.parts[0].q.strides == (8, 32)
