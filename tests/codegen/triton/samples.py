"""The kernels that the Triton tests build: one or two of each template, from small graphs."""

from dataclasses import replace

import numpy as np

from tilewright.codegen.lower import lower_group
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.encoding import ROWS
from tilewright.ir.types import bf16, bool_, f16, f32, i32, i64

from .harness import Case


def make(b: Builder, outputs, sizes, arrays=None, updates=None) -> Case:
    """All nodes of `b` as one kernel, with random data."""
    b.updates = dict(updates or {})
    graph = b.graph(outputs)
    low = lower_group(graph, graph.nodes, {})
    rng = np.random.default_rng(0)
    data, params = [], []
    for value, param in zip(low.values, low.kernel.params):
        shape = [evaluate(d, sizes) for d in param.type.shape]
        if value is None:
            data.append(np.zeros(shape, np.int64))  # no fault so far
        elif value.name is not None and value.name in (arrays or {}):
            array = arrays[value.name].astype(value.dtype.numpy)
            data.append(ROWS.pack(array, value.dtype) if value.dtype.is_packed else array)
        elif value.dtype.is_float:
            data.append(rng.standard_normal(shape).astype(value.dtype.numpy))
        else:
            data.append(rng.integers(0, 3, shape).astype(value.dtype.numpy))
        params.append(replace(param, is_constant=value in graph.weights))
    ranges = {name: graph.symbols[name] for name in low.kernel.symbols}
    return Case(replace(low.kernel, params=tuple(params), ranges=ranges), data, dict(sizes))


def pointwise(t=7, dtype=f32, most=512) -> Case:
    b = Builder()
    s = b.dim("t", 1, most)
    x = b.input("x", (1, s, 24), dtype)
    heads = b.transpose(b.reshape(x, shape=(1, s, 3, 8)), perm=(0, 2, 1, 3))
    low, high = (b.slice(heads, axis=-1, start=a, stop=a + 4) for a in (0, 4))
    y = b.silu(b.concat(b.neg(high), low, axis=-1))
    z = b.reshape(b.transpose(y, perm=(0, 2, 1, 3)), shape=(1, s, 24))
    return make(b, [b.add(z, x)], {"t": t})


def embedding(t=5, dtype=bf16) -> Case:
    b = Builder()
    s = b.dim("t", 1, 512)
    table = b.weight("table", (5, 16), dtype)
    return make(b, [b.gather(table, b.input("ids", (1, s), i64))], {"t": t})


def rope_append(t=5, dtype=f32) -> Case:
    b = Builder()
    s, pages = b.dim("t", 1, 512), b.dim("pages", 1)
    qkv = b.input("qkv", (1, s, 32), dtype)
    cos, sin = b.input("cos", (1, s, 8), dtype), b.input("sin", (1, s, 8), dtype)
    slots = b.input("slots", (s,), i32)
    pools = [b.state(name, (pages, 1, 4, 8), dtype) for name in "kv"]
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
    place = np.random.default_rng(1).permutation(40)[:t].astype(np.int32)
    if t > 1:
        place[t // 2] = -1
    return make(b, [q], {"t": t, "pages": 10}, {"slots": place}, new)


def norm(name="rms_norm", t=6, width=24, dtype=f32) -> Case:
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (s, width), dtype)
    weights = [b.weight(n, (width,), dtype) for n in ("w", "b")]
    if name == "softmax":
        y = b.softmax(x)
    else:
        y = getattr(b, name)(x, *weights[: 1 + (name == "layer_norm")])
    return make(b, [b.mul(y, x)], {"t": t})


def reductions(t=3, width=33, dtype=f32) -> Case:
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (s, width), dtype)
    results = [
        b.argmax(x, axis=-1),
        b.max(x, axes=(1,)),
        b.min(b.neg(x), axes=(1,)),
        b.mean(b.exp(x), axes=(-1,)),
        b.any(b.gt(x, b.constant(2.0, dtype)), axes=(1,)),
        b.argmin(x, axis=-1),
    ]
    return make(b, results, {"t": t})


def sums(t=3, width=0, dtype=f32) -> Case:
    """Reductions that have a value over nothing, and a store along the axis."""
    b = Builder()
    s = b.dim("t", 0, 512)
    x = b.input("x", (s, width), dtype)
    results = [getattr(b, name)(x, axes=(1,)) for name in ("sum", "prod", "mean")]
    seen = b.gt(x, b.constant(0.0, dtype))
    results += [getattr(b, name)(seen, axes=(1,)) for name in ("any", "all")]
    rounded = b.cast(b.cast(x, dtype=bf16), dtype=dtype)
    centred = b.sub(x, b.sum(x, axes=(1,), keepdims=True))
    return make(b, [*results, b.sum(rounded, axes=(1,)), centred], {"t": t})


def columns(t=37, width=40) -> Case:
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.input("x", (s, width))
    return make(b, [b.sum(b.transpose(x, perm=(1, 0)), axes=(1,))], {"t": t})


def softmax_of_columns(length=4096, width=64) -> Case:
    b = Builder()
    return make(b, [b.softmax(b.input("x", (length, width)), axis=0)], {})


def transposed(height=96, width=64, dtype=f32) -> Case:
    b = Builder()
    return make(b, [b.transpose(b.input("x", (height, width), dtype), perm=(1, 0))], {})


def linear(m=1, n=40, k=48, dtype=f32, *, norm=True, bias=True) -> Case:
    """rms_norm, matmul, bias and residual: one kernel."""
    b = Builder()
    s = b.dim("t", 1, 512) if m is not None else 1
    x, r = b.input("x", (1, s, k), dtype), b.input("r", (1, s, n), dtype)
    if norm:
        x = b.rms_norm(x, b.weight("g", (k,), dtype))
    y = b.matmul(x, b.weight("w", (n, k), dtype), transpose_w=True)
    if bias:
        y = b.add(y, b.weight("bias", (n,), dtype))
    return make(b, [b.add(y, r)], {} if m is None else {"t": m})


def gated(m=1, n=40, k=48, dtype=f32, most=512, stacked=False) -> Case:
    b = Builder()
    s = b.dim("t", 1, most)
    x = b.rms_norm(b.input("x", (s, k), dtype), b.weight("g", (k,), dtype))
    if stacked:
        both = b.weight("both", (2 * n, k), dtype)
        ws = [b.slice(both, axis=0, start=i * n, stop=(i + 1) * n) for i in range(2)]
    else:
        ws = [b.weight(name, (n, k), dtype) for name in ("gate", "up")]
    return make(b, [b.gated_linear(x, *ws, activation="silu")], {"t": m})


def scores(t=9) -> Case:
    """A batched product of activations with a causal mask in the epilogue; N is symbolic."""
    b = Builder()
    s = b.dim("t", 1, 512)
    q, k = b.input("q", (2, 2, s, 8)), b.input("k", (2, 1, s, 8))
    k = b.broadcast_to(k, shape=(2, 2, s, 8))
    y = b.mul(b.matmul(q, k, transpose_w=True), b.constant(0.5, f32))
    at = b.iota(length=s)
    seen = b.le(b.reshape(at, shape=(1, s)), b.reshape(at, shape=(s, 1)))
    return make(b, [b.where(seen, y, b.constant(float("-inf"), f32))], {"t": t})


def attention(
    lengths, contexts, *, dtype=f32, kv_dtype=None, v_dtype=None, heads=4, groups=2, size=8,
    v_size=None, page=4, window=None, softcap=None,
) -> Case:  # fmt: skip
    """Sequences of `lengths` new tokens, `contexts` cached ones in all; q is a slice."""
    b = Builder()
    s, n, pages, width = (b.dim(name, 1, 4096) for name in ("t", "seqs", "pages", "width"))
    inner = heads * size
    qkv = b.input("qkv", (s, inner + 8), dtype)
    q = b.reshape(b.slice(qkv, axis=1, start=8, stop=8 + inner), shape=(s, heads, size))
    kv_dtype = kv_dtype or dtype
    k = b.state("k", (pages, groups, page, size), kv_dtype)
    v = b.state("v", (pages, groups, page, v_size or size), v_dtype or kv_dtype)
    names = ("table", "starts", "lens")
    meta = [b.input(x, shape, i32) for x, shape in zip(names, ((n, width), (n + 1,), (n,)))]
    out = b.paged_attention(q, k, v, *meta, scale=0.3, window=window, softcap=softcap)
    needed = [-(-c // page) for c in contexts]
    table = np.zeros((len(lengths), max(needed)), np.int32)
    order = np.random.default_rng(3).permutation(sum(needed)).astype(np.int32)
    for i, count in enumerate(needed):
        table[i, :count], order = order[:count], order[count:]
    arrays = {
        "table": table,
        "starts": np.cumsum([0, *lengths]).astype(np.int32),
        "lens": np.array(contexts, np.int32),
    }
    sizes = {"t": sum(lengths), "seqs": len(lengths), "pages": sum(needed), "width": max(needed)}
    return make(b, [out], sizes, arrays)


# what dense attention may be asked for: arguments of `dense_attention`
DENSE = {
    "causal": {},
    "everything": {"is_causal": False, "batch": ()},
    "window": {"window": 3, "batch": (2, 3)},
    "window_alone": {"window": 2, "is_causal": False},
    "softcap": {"softcap": 2.0, "mask": (("s", 1), bool_)},
    "keys_masked": {"mask": ((2, 1, 1, "t"), bool_), "is_causal": False},
    "bias": {"mask": ((4, "s", "t"), f32)},
    "bias_of_keys": {"mask": (("t",), f32), "softcap": 3.0, "is_causal": False, "window": 4},
    "odd_heads": {"heads": 6, "groups": 2, "size": 20, "v_size": 35},
    "one_head": {"heads": 1, "groups": 1, "size": 33, "v_size": 4, "batch": (1,)},
    "turned": {"scale": -0.5, "is_causal": False},
    "bf16": {"dtype": bf16, "mask": (("s", "t"), bf16)},
    "wide_bf16": {"dtype": bf16, "size": 72, "v_size": 40, "window": 40, "softcap": 4.0},
    "f16": {"dtype": f16, "size": 64},
}
# queries and keys: one, odd, more queries than keys, none
DENSE_SIZES = [(1, 1), (5, 9), (37, 70), (9, 5), (1, 300), (0, 4), (4, 0)]


def dense_attention(
    s=5, t=9, *, dtype=f32, batch=(2,), heads=4, groups=2, size=8, v_size=None, mask=None, **attrs
) -> Case:
    """q, k and v are slices and transposes of buffers; `mask` is its shape and dtype."""
    b = Builder()
    queries, keys = b.dim("s", 0, 4096), b.dim("t", 0, 4096)
    rank, v_size = len(batch), v_size or size

    def view(name, length, count, width):
        wide = b.input(name, (*batch, length, count * width + 8), dtype)
        part = b.slice(wide, axis=-1, start=8, stop=8 + count * width)
        part = b.reshape(part, shape=(*batch, length, count, width))
        return b.transpose(part, perm=(*range(rank), rank + 1, rank, rank + 2))

    operands = [
        view("q", queries, heads, size),
        view("k", keys, groups, size),
        view("v", keys, groups, v_size),
    ]
    if mask is not None:
        shape, kind = mask
        known = {"s": queries, "t": keys}
        operands.append(b.input("mask", tuple(known.get(d, d) for d in shape), kind))
    out = b.attention(*operands, **{"scale": 0.3, "is_causal": True, **attrs})
    out = b.transpose(out, perm=(*range(rank), rank + 1, rank, rank + 2))
    out = b.reshape(out, shape=(*batch, queries, heads * v_size))
    return make(b, [out], {"s": s, "t": t})


def sample(vocab=300) -> Case:
    b = Builder()
    rows = b.dim("rows", 1, 256)
    logits = b.input("logits", (rows, vocab))
    kinds = {"temperature": f32, "top_k": i32, "top_p": f32, "seed": i64, "step": i64}
    inputs = [b.input(name, (rows,), dtype) for name, dtype in kinds.items()]
    arrays = {
        "temperature": np.array([0, 1, 0.7, 1.3, 1, 0.5, 2e-39, 7e-37, 1]),
        "top_k": np.array([0, 0, 5, 0, 40, 1, 0, 0, 0]),
        "top_p": np.array([1, 1, 1, 0.6, 0.8, 1, 0.9, 1, 0]),
        "seed": np.array([0, 1, 2, -3, 2**40 + 1, 5, 6, 7, 8]),
        "step": np.arange(9),
        "logits": 2 * np.random.default_rng(5).standard_normal((9, vocab)),
    }
    return make(b, [b.sample(logits, *inputs)], {"rows": 9}, arrays)


def sample_without_numbers(vocab=300) -> Case:
    """Rows of which no logit is the largest, greedy, drawn, and cut; and sound ones beside them."""
    case = sample(vocab)
    rows = len(case.arrays[0])
    logits = np.concatenate([case.arrays[0]] * 4)
    for row in range(3 * rows):
        value = (np.nan, np.inf, -np.inf)[row % 3]
        logits[row, slice(None) if value == -np.inf else (7 * row) % vocab] = value
    logits[3 * rows :, ::2] = -np.inf
    rest = [np.concatenate([a] * 3 + [a[::-1]]) for a in case.arrays[1:]]
    return replace(case, arrays=[logits, *rest], sizes={"rows": 4 * rows})


def functions() -> tuple[Case, list[str]]:
    """Every elementwise op of floats, a result each, and their names in the order of results."""
    b = Builder()
    x, y = b.input("x", (64,)), b.input("y", (64,))
    i, j = b.input("i", (64,), i32), b.input("j", (64,), i32)
    positive = b.add(b.abs(x), b.constant(0.01, f32))
    unary = "neg abs exp expm1 sqrt sin cos tanh erf sigmoid floor ceil round trunc relu".split()
    unary += "silu gelu gelu_tanh reciprocal isnan".split()
    made = {name: getattr(b, name)(x) for name in unary if name != "sqrt"}
    made |= {name: getattr(b, name)(positive) for name in ("sqrt", "rsqrt", "log", "log1p")}
    of_floats = "div floordiv mod minimum maximum".split()
    made |= {f"{n} of floats": getattr(b, n)(x, y) for n in of_floats}
    made |= {f"{n} of integers": getattr(b, n)(i, j) for n in ("floordiv", "mod", "minimum")}
    made["pow"] = b.pow(positive, y)
    made["pow of whole"] = b.pow(x, b.constant(3.0, f32))
    made["where"] = b.where(b.lt(x, y), b.constant(1.0, f32), b.constant(0.0, f32))
    made["not"] = b.not_(b.or_(b.lt(x, y), b.gt(x, b.constant(1.0, f32))))
    made["to integers"] = b.cast(b.mul(x, b.constant(3.0, f32)), dtype=i32)
    made["to bf16"] = b.cast(b.cast(x, dtype=bf16), dtype=f32)
    made["to bool"] = b.cast(i, dtype=bool_)
    rng = np.random.default_rng(2)
    numbers = np.concatenate(
        [rng.standard_normal(40) * 3, rng.standard_normal(18) * 1e-3, [0.5, 1.5, -2.5, 40, -40, 0]]
    )
    arrays = {
        "x": numbers,
        "y": np.where(np.abs(rng.standard_normal(64)) < 0.1, 0.5, rng.standard_normal(64)),
        "i": rng.integers(-9, 9, 64),
        "j": np.where(rng.integers(0, 2, 64) == 1, 1, -1) * rng.integers(1, 5, 64),
    }
    return make(b, list(made.values()), {}, arrays), list(made)


def divisions(dtype=f32) -> Case:
    """Quotients near whole numbers and far from them, of both signs, and those of no number."""
    b = Builder()
    numbers = np.array([1, 6, 7.5, 0.3, 9, 1e9, 3e30, 1e-30, 0, 5, np.inf, np.nan])
    steps = np.array([0.1, 0.2, 2.5, 0.1, 0.3, 0.7, 7.0, 3.0, 4.0, np.inf, 2.0, 1.0])
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    arrays = {
        "x": np.concatenate([s * numbers for s, _ in signs]),
        "y": np.concatenate([s * steps for _, s in signs]),
    }
    x, y = (b.input(name, (48,), dtype) for name in ("x", "y"))
    return make(b, [b.floordiv(x, y), b.mod(x, y)], {}, arrays)


def cumulative(t=13) -> Case:
    b = Builder()
    s = b.dim("t", 1, 512)
    return make(b, [b.cumsum(b.input("x", (2, s)), axis=1)], {"t": t})


def faulty(index=(0, -3, 7, 1, 2), t=5) -> Case:
    """Lookups by position from either end and a rest, with one index out of range and one zero."""
    b = Builder()
    s = b.dim("t", 1, 512)
    table, i = b.weight("table", (5, 24), f32), b.input("i", (s,), i64)
    ids = b.check_index(i, size=5, wraps=True)
    doubled = b.mul(b.add(b.iota(length=9, dtype=i64), i64_constant(b, 2)), i64_constant(b, 2))
    outputs = [b.gather(table, ids), b.gather(doubled, ids)]
    outputs.append(b.mod(b.iota(length=s, dtype=i64), b.input("j", (s,), i64)))
    arrays = {"i": np.array(index), "j": np.array([3, 2, 0, 4, -3])}
    return make(b, outputs, {"t": t}, arrays)


def wide_rows(index=(0, 4, -1, 1, 2), t=5) -> Case:
    """Looked-up rows that whole tiles fill, one of which is not there, and a number a row."""
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.gather(b.weight("table", (5, 2, 64), f32), b.input("i", (s,), i64))
    scaled = b.mul(x, b.reshape(b.input("scale", (s,), f32), shape=(s, 1, 1)))
    return make(
        b, [b.add(scaled, b.weight("bias", (2, 64), f32))], {"t": t}, {"i": np.array(index)}
    )


def faulty_rows(index=(0, 4, 9, 1, 2), t=5) -> Case:
    """A reduction over looked-up rows, one of which is not there."""
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.gather(b.weight("table", (5, 37), f32), b.input("i", (s,), i64))
    return make(b, [b.sum(x, axes=(1,)), b.max(x, axes=(1,))], {"t": t}, {"i": np.array(index)})


def faulty_product(index=(0, 4, -1, 1, 2), t=5) -> Case:
    """A product of looked-up rows, one of which is not there."""
    b = Builder()
    s = b.dim("t", 1, 512)
    x = b.gather(b.weight("table", (5, 32), f32), b.input("i", (s,), i64))
    y = b.matmul(x, b.weight("w", (24, 32), f32), transpose_w=True)
    return make(b, [y], {"t": t}, {"i": np.array(index)})


def i64_constant(b: Builder, value: int):
    return b.constant(value, i64)
