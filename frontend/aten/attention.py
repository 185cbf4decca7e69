"""Attention: torch's fused operation, and the one that the Hugging Face hook leaves behind."""

import math

from ...ir import types
from ...ir.dim import Dim
from ...ir.graph import Value
from ..importer import Call, Declined, handles
from .view import common_shape


@handles("tilewright.attention.default")
def _hooked(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    sinks: Value | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
) -> Value:
    b, others = call.b, [] if mask is None else [_mask(call, mask, q)]
    if chunk is not None:
        piece = b.floordiv(b.iota(length=q.shape[-2]), b.constant(chunk, types.i64))
        others = [b.eq(call.reshape(piece, (q.shape[-2], 1)), piece)]
    if sinks is not None:  # they come with a mask
        others = others or [b.full(value=True, shape=(1, 1), dtype=types.bool_)]
        others.append(call.value(sinks, types.f32))
    attrs = {"scale": scale, "is_causal": is_causal, "window": window, "softcap": softcap}
    return b.attention(q, k, v, *others, **attrs)


@handles("scaled_dot_product_attention.default")
def _sdpa(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p > 0:
        raise Declined("attention with dropout; call eval() on the module")
    if scale is None:
        scale = 1 / math.sqrt(call.static(q.shape[-1], "the head size"))
    rank = q.type.rank
    if rank == 2:
        q, k, v = (call.reshape(x, (1, *x.shape)) for x in (q, k, v))
    elif rank == 3 or not isinstance(q.shape[-3], int):
        # no axis of heads (or one of unknown size, which is a batch axis to us): one head
        q, k, v = (_with_head(call, x) for x in (q, k, v))
        if attn_mask is not None and attn_mask.type.rank > 2:
            attn_mask = _with_head(call, attn_mask)
    batch = common_shape(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    q, k, v = (call.broadcast(x, (*batch, *x.shape[-3:])) for x in (q, k, v))
    if k.shape[-3] != v.shape[-3]:
        heads = common_shape((k.shape[-3],), (v.shape[-3],))
        k, v = (call.broadcast(x, (*batch, *heads, *x.shape[-2:])) for x in (k, v))
    mask = None if attn_mask is None else _mask(call, attn_mask, q)
    if is_causal and not _same_length(call, q.shape[-2], k.shape[-2]):
        # torch aligns the triangle with the first key, our op with the last
        mask, is_causal = _lower_triangle(call, q.shape[-2], k.shape[-2]), False
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    result = call.b.attention(*operands, scale=scale, is_causal=is_causal)
    return call.reshape(result, call.shape)


def _mask(call: Call, mask: Value, q: Value) -> Value:
    return mask if mask.dtype is types.bool_ else call.value(mask, q.dtype)


def _with_head(call: Call, x: Value) -> Value:
    return call.reshape(x, (*x.shape[:-2], 1, *x.shape[-2:]))


def _same_length(call: Call, queries: Dim, keys: Dim) -> bool:
    return call.facts.proved_eq(queries, keys)


def _lower_triangle(call: Call, queries: Dim, keys: Dim) -> Value:
    b = call.b
    row = call.reshape(b.iota(length=queries), (queries, 1))
    return b.le(b.iota(length=keys), row)
