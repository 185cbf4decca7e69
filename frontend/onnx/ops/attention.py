"""Attention, and rotary positions."""

import math

from ....ir import types
from ....ir.dim import Dim
from ....ir.graph import Value
from ....ir.types import i64
from ...declined import Declined
from ...nn.pad import each_repeated, part
from ..operators import Call, onnx_op


def heads(call: Call, x: Value, count: int | None) -> Value:
    """[B, S, H * D] -> [B, H, S, D]."""
    batch, length, width = x.shape
    if not count or not isinstance(width, int) or width % count:
        raise Declined(f"{x.type} is split in {count} heads")
    return call.transpose(call.reshape(x, (batch, length, count, width // count)), (0, 2, 1, 3))


def merged(call: Call, x: Value) -> Value:
    """[B, H, S, D] -> [B, S, H * D]."""
    batch, count, length, size = x.shape
    return call.reshape(call.transpose(x, (0, 2, 1, 3)), (batch, length, count * size))


def seen(
    call: Call,
    queries: Dim,
    keys: Dim,
    offset: Dim | Value,
    *,
    left: int = -1,
    right: int = -1,
    lengths: Value | None = None,
) -> Value | None:
    """Which keys a query sees: [S, T], or [B, 1, S, T] where it depends on the sequence.

    Query i stands at i + offset, and sees keys from `left` before it to `right` after it, -1: all.
    Keys at or past `lengths` [B] are none. None where everything is seen.
    """
    b = call.b
    key = b.reshape(b.iota(length=keys), shape=(1, keys))
    position = b.reshape(b.iota(length=queries), shape=(queries, 1))
    if isinstance(offset, Value):
        position = b.add(position, _of_sequences(call, offset))
    elif offset != 0:
        position = b.add(position, b.dim_value(value=offset))
    conditions = []
    if right >= 0:
        conditions.append(b.le(key, b.add(position, call.number(right, i64))))
    if left >= 0:
        conditions.append(b.ge(key, b.sub(position, call.number(left, i64))))
    if lengths is not None:
        conditions.append(b.lt(key, _of_sequences(call, lengths)))
    return joint(call, *conditions)


def _of_sequences(call: Call, x: Value) -> Value:
    return call.reshape(call.cast(x, i64), (x.type.numel, 1, 1, 1))


def joint(call: Call, *masks: Value | None) -> Value | None:
    """Masks as one: bools meet, numbers are added, and where a bool is false is minus infinity."""
    b = call.b
    flags, added = None, None
    for mask in masks:
        if mask is None:
            continue
        if mask.dtype == types.bool_:
            flags = mask if flags is None else b.and_(flags, mask)
        else:
            added = mask if added is None else b.add(added, mask)
    if flags is None or added is None:
        return added if flags is None else flags
    return b.where(flags, added, call.number(-math.inf, added.dtype))


def attend(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    is_causal: bool = False,
    left: int = -1,
) -> Value:
    """The op `attention`, of one dtype; its causal rule ends queries and keys together."""
    return call.b.attention(
        *_operands(call, q, k, v, mask),
        scale=_scale(call, q, scale),
        is_causal=is_causal,
        window=left + 1 if left >= 0 else None,
        softcap=softcap or None,
    )


def _operands(call: Call, q: Value, k: Value, v: Value, mask: Value | None) -> list[Value]:
    operands = [q, call.cast(k, q.dtype), call.cast(v, q.dtype)]
    if mask is not None:
        operands.append(mask if mask.dtype == types.bool_ else call.cast(mask, q.dtype))
    return operands


def _scale(call: Call, q: Value, scale: float | None) -> float:
    return scale if scale is not None else 1 / math.sqrt(call.static(q.shape[-1], "the head size"))


def _with_past(call: Call, past: Value | None, new: Value) -> Value:
    return new if past is None else call.b.concat(past, new, axis=2)


@onnx_op("Attention", since=23)
def _attention(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    lengths: Value | None = None,
    *,
    is_causal: bool = False,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,  # scores and sums are in float32 anyway
) -> tuple[Value, ...]:
    b, is_flat = call.b, q.type.rank == 3
    if is_flat:
        q = heads(call, q, q_num_heads)
        k, v = (heads(call, x, kv_num_heads) for x in (k, v))
    k, v = _with_past(call, past_key, k), _with_past(call, past_value, v)
    queries, keys = q.shape[2], k.shape[2]
    offset: Dim | Value = 0
    if past_key is not None:
        offset = past_key.shape[2]
    elif lengths is not None:
        offset = b.sub(call.cast(lengths, i64), b.dim_value(value=queries))
    left, right = left_window_size, right_window_size
    right = 0 if is_causal else right
    # what ends queries and keys together is the op's own causal rule
    is_own = right == 0 and not isinstance(offset, Value) and _is_last(call, offset, queries, keys)
    if mask is not None and mask.shape[-1] != keys:
        nothing = False if mask.dtype == types.bool_ else -math.inf
        after = keys - mask.shape[-1]
        mask = b.pad(mask, axis=mask.type.rank - 1, before=0, after=after, value=nothing)
    window = {} if is_own else {"left": left, "right": right}
    condition = seen(call, queries, keys, offset, **window, lengths=lengths)
    mask = joint(call, mask, condition)
    causal = {"is_causal": True, "left": left} if is_own else {}
    y = attend(call, q, k, v, mask, scale=scale, softcap=softcap, **causal)
    results = [merged(call, y) if is_flat else y, k, v]
    if call.num_outputs > 3:
        full = joint(call, mask, seen(call, queries, keys, offset, left=left, right=right))
        results.append(_scores(call, q, k, full, scale, softcap, qk_matmul_output_mode))
    return tuple(results)


def _is_last(call: Call, offset: Dim, queries: Dim, keys: Dim) -> bool:
    return call.facts.proved_eq(offset + queries, keys)


def _scores(
    call: Call,
    q: Value,
    k: Value,
    mask: Value | None,
    scale: float | None,
    softcap: float,
    mode: int,
) -> Value:
    """What the product of queries and keys has become: 0 scaled, 1 capped, 2 masked, 3 weights."""
    b, dtype = call.b, q.dtype
    k = each_repeated(b, k, 1, q.shape[1] // k.shape[1])
    root = call.number(math.sqrt(_scale(call, q, scale)), dtype)
    x = b.matmul(b.mul(q, root), b.mul(call.cast(k, dtype), root), transpose_w=True)
    if mode and softcap:
        cap = call.number(softcap, dtype)
        x = b.mul(b.tanh(b.div(x, cap)), cap)
    if mode < 2:
        return x
    nothing = call.number(-math.inf, dtype)
    if mask is not None and mask.dtype == types.bool_:
        x = b.where(mask, x, nothing)
    elif mask is not None:
        x = b.add(x, call.cast(mask, dtype))
    if mode == 2:
        return x
    is_none = b.eq(b.max(x, axes=(-1,), keepdims=True), nothing)
    return b.where(is_none, call.number(0, dtype), b.softmax(x, axis=-1))


# ---- rotary positions ------------------------------------------------------------------------


def rotated(
    call: Call, x: Value, cos: Value, sin: Value, *, interleaved: bool = False, width: int = 0
) -> Value:
    """x [B, H, S, D] turned by cos and sin [B or 1, S, width / 2]; the rest of D stays."""
    b = call.b
    size = call.static(x.shape[-1], "the head size")
    width = width or size
    kept = part(b, x, 3, width, size) if width < size else None
    x = part(b, x, 3, 0, width)
    cos, sin = (
        call.cast(call.reshape(v, (v.shape[0], 1, *v.shape[1:])), x.dtype) for v in (cos, sin)
    )
    if interleaved:
        x = _pairs_last(call, x)
    both = [b.concat(v, v, axis=3) for v in (cos, sin)]
    x = b.rope(x, *both)
    if interleaved:
        x = _pairs_together(call, x)
    return x if kept is None else b.concat(x, kept, axis=3)


def _pairs_last(call: Call, x: Value) -> Value:
    """The first of all pairs along the last axis, and then the second ones."""
    *kept, width = x.shape
    pairs = call.reshape(x, (*kept, width // 2, 2))
    return call.reshape(call.b.transpose(pairs, perm=(0, 1, 2, 4, 3)), x.shape)


def _pairs_together(call: Call, x: Value) -> Value:
    """The inverse of `_pairs_last`."""
    *kept, width = x.shape
    halves = call.reshape(x, (*kept, 2, width // 2))
    return call.reshape(call.b.transpose(halves, perm=(0, 1, 2, 4, 3)), x.shape)


@onnx_op("RotaryEmbedding", since=23)
def _rotary(
    call: Call,
    x: Value,
    cos: Value,
    sin: Value,
    positions: Value | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Value:
    is_flat = x.type.rank == 3
    x = heads(call, x, num_heads) if is_flat else x
    if positions is not None:
        cos, sin = (call.b.gather(v, positions, axis=0) for v in (cos, sin))
    turned = rotated(call, x, cos, sin, interleaved=interleaved, width=rotary_embedding_dim)
    return merged(call, turned) if is_flat else turned
