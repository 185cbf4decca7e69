"""Attention of com.microsoft, with caches and masks as its operators have them."""

from ....ir.dim import Dim
from ....ir.graph import Value
from ....ir.types import bool_, i64
from ...declined import Declined
from ...nn.pad import pieces
from ..operators import Call
from .attention import attend, heads, joint, merged, rotated, seen
from .contract import matmul
from .contrib import microsoft
from .control import stacked
from .index import wrapped


def _padding(call: Call, mask: Value | None, keys: Dim) -> Value | None:
    """Which keys are no padding, to go with [B, H, S, T]: by their number [B], or one by one."""
    if mask is None:
        return None
    b = call.b
    if mask.type.rank == 1:
        key = b.iota(length=keys)
        return b.lt(key, call.reshape(call.cast(mask, i64), (mask.shape[0], 1, 1, 1)))
    if mask.type.rank == 4:
        raise Declined(f"a mask of {mask.type}")
    flags = mask if mask.dtype == bool_ else b.ne(mask, call.number(0, mask.dtype))
    batch, *rows = mask.shape
    return call.reshape(flags, (batch, 1, *(1,) * (2 - len(rows)), *rows))


def _attended(
    call: Call,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    bias: Value | None,
    past: Dim,
    *,
    unidirectional: int,
    scale: float,
) -> Value:
    """Attention where `past` keys come before those of the queries -> [B, S, H * D]."""
    keys = k.shape[2]
    causal = None
    is_own = unidirectional and call.facts.proved_eq(past + q.shape[2], keys)
    if unidirectional and not is_own:
        causal = seen(call, q.shape[2], keys, past, right=0)
    mask = joint(call, bias, _padding(call, mask, keys), causal)
    return merged(call, attend(call, q, k, v, mask, scale=scale or None, is_causal=is_own))


@microsoft("Attention")
def _attention(
    call: Call,
    x: Value,
    weights: Value,
    bias: Value | None = None,
    mask: Value | None = None,
    past: Value | None = None,
    attention_bias: Value | None = None,
    past_length: Value | None = None,
    *,
    do_rotary: bool = False,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: bool = False,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> tuple[Value, Value]:
    """x @ weights is q, k and v side by side; past [2, B, H, P, D] comes before k and v."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise Declined("attention with rotary positions or a shared buffer")
    b = call.b
    rows = matmul(call, x, weights)
    rows = rows if bias is None else b.add(rows, bias)
    width = call.static(rows.shape[2], "the width of q, k and v")
    sizes = qkv_hidden_sizes or (width // 3,) * 3
    q, k, v = (heads(call, x, num_heads) for x in pieces(b, rows, 2, sizes))
    length: Dim = 0
    if past is not None:
        length = past.shape[3]
        old = (call.reshape(x, past.shape[1:]) for x in pieces(b, past, 0, (1, 1)))
        k, v = (b.concat(*both, axis=2) for both in zip(old, (k, v)))
    y = _attended(
        call, q, k, v, mask, attention_bias, length, unidirectional=unidirectional, scale=scale
    )
    return y, stacked(call, (k, v), 0)


@microsoft("MultiHeadAttention")
def _multi_head(
    call: Call,
    q: Value,
    k: Value | None = None,
    v: Value | None = None,
    bias: Value | None = None,
    mask: Value | None = None,
    attention_bias: Value | None = None,
    past_key: Value | None = None,
    past_value: Value | None = None,
    past_length: Value | None = None,
    cache_indirection: Value | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: bool = False,
) -> tuple[Value, ...]:
    """q [B, S, H * D]; k, v [B, T, H * D], or [B, H, T, D] where they are there already."""
    b = call.b
    if k is None or v is None or cache_indirection is not None or past_length is not None:
        raise Declined("queries, keys and values in one tensor, or a shared buffer")
    parts: list[Value] = [q, k, v]
    if bias is not None:
        width = call.static(q.shape[2], "the width of the queries")
        own = pieces(b, bias, 0, (width, width, bias.shape[0] - 2 * width))
        parts = [b.add(x, v) if x.type.rank == 3 else x for x, v in zip(parts, own)]
    q, k, v = (heads(call, x, num_heads) if x.type.rank == 3 else x for x in parts)
    length: Dim = 0
    if past_key is not None and past_value is not None:
        length = past_key.shape[2]
        k, v = b.concat(past_key, k, axis=2), b.concat(past_value, v, axis=2)
    y = _attended(
        call, q, k, v, mask, attention_bias, length, unidirectional=unidirectional, scale=scale
    )
    return y, k, v


@microsoft("GroupQueryAttention")
def _group_query(
    call: Call,
    q: Value,
    k: Value | None,
    v: Value | None,
    past_key: Value | None,
    past_value: Value | None,
    lengths: Value,
    total: Value | None = None,
    cos: Value | None = None,
    sin: Value | None = None,
    positions: Value | None = None,
    attention_bias: Value | None = None,
    sinks: Value | None = None,
    *,
    do_rotary: bool = False,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Value, Value, Value]:
    """Causal attention of S new tokens after past [B, G, P, D] -> also what the past is then.

    lengths [B]: tokens of each sequence so far, the new ones included, less 1. New keys and values
    go behind the old ones of their sequence, in room for P + S.
    """
    if sinks is not None or smooth_softmax or qk_output or kv_cache_bit_width:
        raise Declined("attention with sinks, scores as a result, or a quantized cache")
    b = call.b
    if k is None or v is None:
        size = call.static(q.shape[2], "the width of q, k and v") // (num_heads + 2 * kv_num_heads)
        queries, keys = num_heads * size, kv_num_heads * size
        q, k, v = pieces(b, q, 2, (queries, keys, q.shape[2] - queries - keys))
    q, k, v = heads(call, q, num_heads), heads(call, k, kv_num_heads), heads(call, v, kv_num_heads)
    batch, _, new, _ = q.shape
    is_first = past_key is None or past_key.shape[2] == 0  # then no token can come before these
    first: Dim | Value = 0
    places = call.reshape(b.iota(length=new), (1, new))
    if not is_first:
        lengths = call.cast(call.reshape(lengths, (batch,)), i64)
        before = b.sub(b.add(lengths, call.number(1, i64)), b.dim_value(value=new))
        first = b.maximum(before, call.number(0, i64))
        places = b.add(b.iota(length=new), call.reshape(first, (batch, 1)))
    if do_rotary:
        if cos is None or sin is None:
            raise Declined("rotary positions without their tables")
        index = wrapped(call, places if positions is None else positions, cos.shape[0])
        tables = [b.gather(table, index, axis=0) for table in (cos, sin)]
        width = 2 * call.static(cos.shape[1], "the width of the rotary table")
        q, k = (
            rotated(call, x, *tables, interleaved=rotary_interleaved, width=width) for x in (q, k)
        )
    options = {"scale": scale or None, "softcap": softcap}
    left = local_window_size - 1 if local_window_size > 0 else -1
    if is_first:
        y = attend(call, q, k, v, attention_bias, is_causal=True, left=left, **options)
    else:
        k, v = (_behind(call, past, x, places) for past, x in ((past_key, k), (past_value, v)))
        causal = seen(call, new, k.shape[2], first, right=0, left=left)
        y = attend(call, q, k, v, joint(call, attention_bias, causal), **options)
    return merged(call, y), k, v


def _behind(call: Call, past: Value | None, new: Value, places: Value) -> Value:
    """past [B, G, P, D] and room for S more, with new [B, G, S, D] put at places [B, S]."""
    if past is None:
        return new
    room = call.b.pad(past, axis=2, before=0, after=new.shape[2], value=0)
    batch, length = places.shape
    index = call.broadcast(call.reshape(places, (batch, 1, length, 1)), new.shape)
    return call.b.scatter_elements(room, index, new, axis=2)


@microsoft("RotaryEmbedding")
def _rotary(
    call: Call,
    x: Value,
    positions: Value,
    cos: Value,
    sin: Value,
    *,
    interleaved: bool = False,
    is_packed_batching: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:
    """positions: [B, S], or [1], the position of the first token of each sequence."""
    if is_packed_batching:
        raise Declined("sequences of different lengths in one row")
    b, is_flat = call.b, x.type.rank == 3
    if is_flat:
        width = call.static(cos.shape[1], "the width of the rotary table") * 2
        x = heads(call, x, num_heads or call.static(x.shape[2], "the width") // width)
    if positions.type.rank == 1:
        row = b.add(b.iota(length=x.shape[2]), call.cast(positions, i64))
        positions = call.reshape(row, (1, x.shape[2]))
    tables = [b.gather(table, positions, axis=0) for table in (cos, sin)]
    y = rotated(call, x, *tables, interleaved=interleaved, width=rotary_embedding_dim)
    return merged(call, y) if is_flat else y
