"""Samples of ops over rows: reductions, contractions, composites, attention, sampling."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tilewright.ir.ops.sampling import gumbel
from tilewright.ir.types import bf16, bool_, f32, f64, i8, i32, i64, u8

from .sample import FLOATS, INTEGERS, Operand, Sample, below, distinct, nonzero, wide
from .samples_elements import UNARY

ACTIVATIONS = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": UNARY["gelu_tanh"], "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}  # fmt: skip

# ---- reductions ----------------------------------------------------------------------------


def reductions() -> Iterator[Sample]:
    # sums of halves are made in float32, as ours are, and rounded once
    functions = {
        "sum": lambda x, a, k: wide(x).sum(a, k).to(x.dtype),
        "mean": lambda x, a, k: wide(x).mean(a, k).to(x.dtype),
        "max": lambda x, a, k: x.amax(a, k),
        "min": lambda x, a, k: x.amin(a, k),
    }
    for name, function in functions.items():
        for dtype in (*FLOATS, *(() if name == "mean" else INTEGERS)):
            for axes, keepdims in (((-1,), False), ((0, 2), True), ((1,), True)):
                attrs = {"axes": axes, "keepdims": keepdims}
                call = lambda x, f=function, a=axes, k=keepdims: f(x, a, k)  # noqa: E731
                yield Sample(name, (Operand((3, 5, 4), dtype),), call, attrs)
    empty = (Operand((0, 3)),)
    yield Sample("sum", empty, lambda x: x.sum(0), {"axes": (0,)})
    yield Sample("mean", empty, lambda x: x.mean(0), {"axes": (0,)})
    yield Sample("max", empty, lambda x: torch.full((3,), -math.inf), {"axes": (0,)})
    yield Sample("min", empty, lambda x: torch.full((3,), math.inf), {"axes": (0,)})
    yield Sample("max", (Operand((4, 6)),), lambda x: x.amax(1), {"axes": (1,)}, special=True)
    yield Sample("min", (Operand((4, 6)),), lambda x: x.amin(1), {"axes": (1,)}, special=True)
    for dtype in (f32, f64, i64):
        for axis in (0, 1):
            call = lambda x, a=axis: x.prod(a)  # noqa: E731
            yield Sample("prod", (Operand((4, 3), dtype, nonzero),), call, {"axes": (axis,)})
    for name in ("any", "all"):
        for shape in ((3, 4), (0, 4)):
            call = lambda x, name=name: getattr(x, name)(0)  # noqa: E731
            yield Sample(name, (Operand(shape, bool_),), call, {"axes": (0,)}, exact=True)
    for name in ("argmax", "argmin"):
        for dtype in (f32, bf16, i64):
            for keepdims in (False, True):
                call = lambda x, n=name, k=keepdims: getattr(x, n)(-1, keepdim=k)  # noqa: E731
                attrs = {"axis": -1, "keepdims": keepdims}
                yield Sample(name, (Operand((3, 7), dtype, distinct),), call, attrs, exact=True)
    first = lambda rng, shape, dtype: np.array([[1.0, 3, 3, 2], [np.nan, 4, np.nan, 4]])  # noqa: E731
    expected = lambda x: torch.tensor([1, 0])  # noqa: E731  the first of equals; NaN is largest
    yield Sample("argmax", (Operand((2, 4), f32, first),), expected, {"axis": -1}, exact=True)


# ---- contractions, composites, attention -----------------------------------------------------


def contractions() -> Iterator[Sample]:
    for dtype in FLOATS:
        for x, w, transposed in (
            ((3, 4), (4, 5), False),
            ((2, 3, 4), (5, 4), True),
            ((2, 1, 3, 4), (5, 4, 6), False),
            ((1, 7), (1, 7), True),
            ((0, 4), (4, 2), False),
        ):

            def product(x, w, transposed=transposed):
                return wide(x) @ (wide(w).mT if transposed else wide(w))

            attrs = {"transpose_w": transposed}
            call = lambda x, w, f=product: f(x, w).to(x.dtype)  # noqa: E731
            yield Sample("matmul", (Operand(x, dtype), Operand(w, dtype)), call, attrs)
    for name, function in ACTIVATIONS.items():
        call = lambda x, g, u, f=function: f(x @ g.T) * (x @ u.T)  # noqa: E731
        operands = Operand((2, 3, 4)), Operand((6, 4)), Operand((6, 4))
        yield Sample("gated_linear", operands, call, {"activation": name})


def grouped() -> Iterator[Sample]:
    """Products of rows with matrices of their own; the first of each op may have all sizes 1."""
    operands = Operand((1, 1)), Operand((1, 1, 1)), Operand((1,), i32, below(1))
    yield Sample("grouped_matmul", operands, lambda x, w, i: x * w[0])
    operands = (*operands[:2], *operands[1:])
    call = lambda x, g, u, i: torch.relu(x * g[0]) * (x * u[0])  # noqa: E731
    yield Sample("grouped_gated_linear", operands, call, {"activation": "relu"})
    for dtype in FLOATS:
        # more rows than matrices, matrices without rows, rows that share one, none at all
        sizes = ((7, 3, True), (2, 5, False), (40, 2, True), (0, 2, False))
        for rows, groups, transposed in sizes if dtype == f32 else sizes[:1]:

            def chosen(x, w, i, transposed=transposed):
                w = wide(w).mT if transposed else wide(w)
                return (wide(x)[:, None] @ w[i])[:, 0].to(x.dtype)

            w = Operand((groups, 6, 5) if transposed else (groups, 5, 6), dtype)
            operands = Operand((rows, 5), dtype), w, Operand((rows,), i64, below(groups))
            yield Sample("grouped_matmul", operands, chosen, {"transpose_w": transposed})
    for name, function in ACTIVATIONS.items():
        call = lambda x, g, u, i, f=function: torch.stack(  # noqa: E731
            [f(g[j] @ row) * (u[j] @ row) for row, j in zip(x, i)]
        )
        gate = Operand((3, 6, 4))
        operands = Operand((9, 4)), gate, gate, Operand((9,), i32, below(3))
        yield Sample("grouped_gated_linear", operands, call, {"activation": name})


def composites() -> Iterator[Sample]:
    for dtype in FLOATS:
        for axis in (-1, 0):
            call = lambda x, a=axis: torch.softmax(wide(x), a).to(x.dtype)  # noqa: E731
            yield Sample("softmax", (Operand((3, 6), dtype),), call, {"axis": axis})
        x, w = Operand((2, 3, 8), dtype), Operand((8,), dtype)
        for eps in (1e-6, 1e-2):
            call = lambda x, w, e=eps: F.rms_norm(wide(x), (8,), wide(w), e).to(x.dtype)  # noqa: E731
            yield Sample("rms_norm", (x, w), call, {"eps": eps})
            call = lambda x, w, c, e=eps: F.layer_norm(  # noqa: E731
                wide(x), (8,), wide(w), wide(c), e
            ).to(x.dtype)
            yield Sample("layer_norm", (x, w, w), call, {"eps": eps})
    for codes in (i8, u8, i32):
        for groups in (1, 3, 6):
            call = lambda q, s, z, g=6 // groups: (  # noqa: E731
                (q.float() - z.repeat_interleave(g, -1)) * s.repeat_interleave(g, -1)
            )
            shared = Operand((2, groups))
            yield Sample("dequantize", (Operand((2, 6), codes), shared, shared), call)
    x, w = Operand((3, 1)), Operand((1,))
    yield Sample("softmax", (x,), torch.ones_like, {"axis": 1}, exact=True)
    yield Sample("rms_norm", (x, w), lambda x, w: F.rms_norm(x, (1,), w, 0.1), {"eps": 0.1})
    call = lambda x, w, c: F.layer_norm(x, (1,), w, c, 0.1)  # noqa: E731
    yield Sample("layer_norm", (x, w, w), call, {"eps": 0.1})
    yield from convolutions()
    for cos in ((5, 4), (2, 1, 5, 4), (4,)):
        operands = Operand((2, 3, 5, 4)), Operand(cos), Operand(cos)
        yield Sample("rope", operands, _rope)


def _rope(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def convolutions() -> Iterator[Sample]:
    calls = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    # x, w, strides, dilation, groups
    cases = [
        ((2, 3, 9), (4, 3, 3), (2,), (1,), 1),
        ((1, 6, 5, 7), (4, 3, 2, 3), (1, 2), (2, 1), 2),
        ((2, 4, 6, 5), (8, 1, 3, 2), (1, 1), (1, 2), 4),
        ((1, 35, 4, 3), (33, 35, 1, 1), (2, 1), (1, 1), 1),
        ((1, 2, 3, 4, 3), (5, 2, 2, 1, 3), (1, 2, 1), (1, 1, 1), 1),
        ((1, 1, 2, 2), (1, 1, 2, 2), (1, 1), (1, 1), 1),
        ((0, 3, 4), (2, 3, 2), (1,), (1,), 1),
    ]
    for x, w, strides, dilation, groups in cases:
        for dtype in FLOATS if len(x) == 4 else (f32,):
            call = lambda x, w, s=strides, d=dilation, g=groups: calls[x.dim() - 2](  # noqa: E731
                wide(x), wide(w), None, s, 0, d, g
            ).to(x.dtype)
            attrs = {"strides": strides, "dilation": dilation, "groups": groups}
            yield Sample("conv", (Operand(x, dtype), Operand(w, dtype)), call, attrs)


def attentions() -> Iterator[Sample]:
    cases: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {"is_causal": True, "window": 2},
        {"softcap": 2.0},
        {"is_causal": True, "window": 1, "unseen": 3.0},
        {"is_causal": True, "softcap": 5.0, "window": 3},
    ]
    widest = [Operand((1, heads, 5, 512)) for heads in (2, 1, 1)]
    yield Sample("attention", widest, partial(_attention, scale=0.04), {"scale": 0.04})
    sizes = ((4, 2, 5, 5), (3, 1, 2, 7), (2, 2, 1, 4))
    for row, (heads, kv_heads, queries, keys) in enumerate(sizes):
        q = Operand((2, heads, queries, 8))
        k, v = Operand((2, kv_heads, keys, 8)), Operand((2, kv_heads, keys, 6))
        masks = (Operand((queries, keys), bool_), Operand((2, 1, 1, keys), f32))
        for column, case in enumerate(cases):
            attrs = {"scale": 0.3, **case}
            call = lambda *operands, a=attrs: _attention(*operands, **a)  # noqa: E731
            yield Sample("attention", (q, k, v), call, attrs)
            mask = masks[(row + column) % 2]  # each with each size and each case, not with both
            yield Sample("attention", (q, k, v, mask), call, attrs)
        sinks = Operand((heads,), f32)
        yield Sample("attention", (q, k, v, masks[row % 2], sinks), call, attrs)


def _attention(
    q, k, v, mask=None, sinks=None, *, scale, is_causal=False, window=None, softcap=None, unseen=0.0
):
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q @ k.mT * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = scores.shape[-2:]
    at = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if is_causal:
        seen = seen & (key <= at)
    if window is not None:
        seen = seen & (key > at - window)
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        column = sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
        v = torch.cat([v, torch.zeros_like(v[..., :1, :])], -2)
    weights = torch.softmax(scores, -1)
    sees = ~torch.isnan(weights).any(-1, keepdim=True)
    return torch.where(sees, torch.nan_to_num(weights, nan=0.0) @ v, unseen)


def paging() -> Iterator[Sample]:
    slots = lambda rng, shape, dtype: np.array([9, 2, -1, 0])  # noqa: E731
    for dtype in (f32, bf16):
        pool, new = Operand((3, 2, 4, 8), dtype), Operand((4, 2, 8), dtype)
        yield Sample("kv_append", (pool, new, Operand((4,), i32, slots)), _append, exact=True)
    table = lambda rng, shape, dtype: np.array([[3, 1], [0, 4], [2, 2]])  # noqa: E731
    starts = lambda rng, shape, dtype: np.array([0, 3, 4, 4])  # noqa: E731
    lens = lambda rng, shape, dtype: np.array([6, 1, 0])  # noqa: E731
    metadata = (
        Operand((3, 2), i32, table), Operand((4,), i32, starts), Operand((3,), i32, lens),
    )  # fmt: skip
    for case in ({}, {"window": 2}, {"softcap": 3.0}):
        attrs = {"scale": 0.4, **case}
        call = lambda *a, attrs=attrs: _paged(*a, **attrs)  # noqa: E731
        for width in (8, 3):
            pools = Operand((5, 2, 4, 8)), Operand((5, 2, 4, width))
            yield Sample("paged_attention", (Operand((4, 4, 8)), *pools, *metadata), call, attrs)
    near = lambda at, key, head: (at // 3 == key // 3, None)  # noqa: E731
    slope = lambda at, key, head: (key >= 0, head[0] * (key - at))  # noqa: E731
    both = lambda at, key, head: (key != at - 1, head[1] - 0.5 * at)  # noqa: E731
    for columns, score, more in (
        (0, near, {"seen": "position // 3 == key // 3"}),
        (1, slope, {"bias": "head0 * (key - position)", "window": 4}),
        (2, both, {"seen": "key != position - 1", "bias": "head1 - 0.5 * position", "sink": 0}),
        (1, lambda at, key, head: (key >= 0, None), {"sink": 0}),
    ):
        attrs = {"scale": 0.4, **more}
        given = {"score": score, "sink": more.get("sink"), "window": more.get("window")}
        call = lambda *a, given=given: _paged(*a, scale=0.4, **given)  # noqa: E731
        heads = (Operand((4, columns), f32),) if columns else ()
        pools = Operand((5, 2, 4, 8)), Operand((5, 2, 4, 8))
        operands = (Operand((4, 4, 8)), *pools, *metadata, *heads)
        yield Sample("paged_attention", operands, call, attrs)


def _append(pool, x, slots):
    pool = pool.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            pool[slot // 4, :, slot % 4] = x[row]
    return pool


def _paged(q, k_pool, v_pool, table, starts, lens, heads=None, *, score=None, sink=None, **attrs):
    rows = []
    columns = () if heads is None else heads.T[..., None, None].to(q.dtype)
    sinks = None if sink is None else heads[:, sink]
    for s, context in enumerate(lens.tolist()):
        first, last = starts[s], starts[s + 1]
        if first == last:
            continue
        k, v = (  # [G, context, D]
            torch.stack([pool[table[s, at // 4], :, at % 4] for at in range(context)], 1)
            for pool in (k_pool, v_pool)
        )
        mask = None
        if score is not None:
            at, key = (
                torch.arange(context - (last - first), context)[:, None],
                torch.arange(context),
            )
            seen, bias = score(at, key, columns)
            mask = (seen & True) if bias is None else bias.masked_fill(~seen, -math.inf)
        one = _attention(q[first:last].transpose(0, 1), k, v, mask, sinks, is_causal=True, **attrs)
        rows.append(one.transpose(0, 1))
    return torch.cat(rows)


# ---- choosing tokens -----------------------------------------------------------------------


def sampling() -> Iterator[Sample]:
    def given(*values):
        return lambda rng, shape, dtype: np.array(values)

    parameters = (
        Operand((4,), f32, given(0.0, 1.0, 0.7, 1.3)),
        Operand((4,), i32, given(0, 0, 3, 5)),
        Operand((4,), f32, given(1.0, 1.0, 1.0, 0.6)),
        Operand((4,), i64, given(1, 2, 3, 2**40 + 5)),
        Operand((4,), i64, given(0, 1, 2, 3)),
    )
    yield Sample("sample", (Operand((4, 50), f32, distinct), *parameters), _sampled, exact=True)


def _sampled(logits, temperature, top_k, top_p, seed, step):
    rows = []
    for r in range(len(logits)):
        if temperature[r] == 0:
            rows.append(int(logits[r].argmax()))
            continue
        scaled = (logits[r] / temperature[r]).double()
        if 0 < top_k[r] < len(scaled):
            least = scaled.topk(int(top_k[r])).values[-1]
            scaled = scaled.masked_fill(scaled < least, -math.inf)
        if top_p[r] < 1:
            ordered, places = scaled.softmax(0).sort(descending=True)
            count = int((ordered.cumsum(0) < float(top_p[r])).sum()) + 1
            kept = torch.zeros(len(scaled), dtype=torch.bool)
            kept[places[:count]] = True
            scaled = scaled.masked_fill(~kept, -math.inf)
        noise = torch.from_numpy(gumbel(int(seed[r]), int(step[r]), len(scaled)))
        rows.append(int((scaled + noise).argmax()))
    return torch.tensor(rows, dtype=torch.int32)
