"""Attention, dense and over the paged KV cache."""

import numpy as np

from ..op import broadcast_shapes, op
from ..scalar import Scalar, evaluate_scalar, parse_scalar
from ..types import bf16, bool_, f16, f32, i32

STORED = (f32, bf16, f16)  # what kernels take; they compute in f32
WIDEST = 512  # head size


def _refusal(*sides) -> str | None:
    if any(x.dtype not in STORED for x in sides):
        return f"it computes in f32 what is stored in {', '.join(map(str, STORED))}"
    if any(not isinstance(x.shape[-1], int) or not 0 < x.shape[-1] <= WIDEST for x in sides):
        return f"head sizes must be known, and at most {WIDEST}"
    return None


@op(kind="attention", strided=("q", "k", "v", "mask"))
def attention(
    q,
    k,
    v,
    mask=None,
    sinks=None,
    *,
    scale: float,
    is_causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    unseen: float = 0.0,
):
    """softmax(cap(scale * q k^T) + mask) v.

    q: [..., H, S, D], k: [..., G, T, D], v: [..., G, T, Dv] -> [..., H, S, Dv].

    H is a multiple of G: query head h reads KV head h // (H / G). is_causal lets query i of S see
    keys up to i + T - S. window w lets it see only the last w of those. softcap c replaces a score
    s by c * tanh(s / c). mask broadcasts to [..., H, S, T]: bool (true: seen) or added to scores.
    sinks: [H] f32, the score of one more key a head, whose value is 0 and which all queries see;
    they come with a mask, which may be true everywhere. A query that sees nothing gives `unseen`.
    Vaswani et al., 2017, eq. 1; scores and sums in float32.
    """
    if min(q.rank, k.rank, v.rank) < 3 or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q is {q}, k is {k}, v is {v}: need one dtype and rank 3 or more")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise TypeError(f"q is {q}, k is {k}, v is {v}: batch, key length or head size differ")
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if not (isinstance(heads, int) and isinstance(kv_heads, int)) or heads % kv_heads:
        raise TypeError(f"{heads} query heads are not a multiple of {kv_heads} KV heads")
    if mask is not None:
        scores = (*q.shape[:-1], k.shape[-2])
        if broadcast_shapes(mask.shape, scores) != scores:
            raise TypeError(
                f"mask is {mask}: does not broadcast to [{', '.join(map(str, scores))}]"
            )
        if mask.dtype not in (bool_, q.dtype):
            raise TypeError(f"mask is {mask}: must be bool or {q.dtype}")
    if sinks is not None and (sinks.shape, sinks.dtype) != ((heads,), f32):
        raise TypeError(f"sinks are {sinks}: must be f32[{heads}]")
    return q.with_shape((*q.shape[:-1], v.shape[-1]))


@attention.set_refusal
def _(q, k, v, *others, **attrs):
    return _refusal(q, k, v)


@attention.set_reference
def _(q, k, v, mask=None, sinks=None, *, scale, is_causal, window, softcap, unseen):
    group = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    scores = q @ np.swapaxes(k, -1, -2) * q.dtype.type(scale)
    queries, keys = scores.shape[-2:]
    position = np.arange(queries)[:, None] + (keys - queries)
    seen = visible(position, np.arange(keys)[None, :], is_causal, window)
    weights = masked_softmax(scores, seen, mask, softcap, sinks)
    sees = np.any(weights != 0, -1, keepdims=True) | (sinks is not None)
    return np.where(sees, weights @ v, q.dtype.type(unseen))


def visible(position, key, is_causal: bool, window: int | None):
    """Which keys a query at `position` sees, by the causal rule and the window."""
    seen = np.broadcast_to(np.True_, np.broadcast_shapes(position.shape, key.shape))
    if is_causal:
        seen = seen & (key <= position)
    if window is not None:
        seen = seen & (key > position - window)
    return seen


def masked_softmax(scores, seen, mask, softcap: float | None, sinks=None):
    """Rows of weights; a row that sees nothing is 0. sinks: [H], the score of a key without value.

    scores: [..., H, S, T].
    """
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask
    elif mask is not None:
        seen = seen & mask
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = sinks[:, None, None].astype(scores.dtype)
        top = np.maximum(top, sinks)
    top = np.where(np.isneginf(top), 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    return weights / np.where(total == 0, 1, total)


@attention.set_decomposition
def _(b, q, k, v, mask=None, sinks=None, *, scale, is_causal, window, softcap, unseen):
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if heads != kv_heads:
        k, v = (_repeat_heads(b, x, heads // kv_heads) for x in (k, v))
    dtype = q.dtype
    scores = b.mul(b.matmul(q, k, transpose_w=True), b.constant(scale, dtype))
    if softcap is not None:
        cap = b.constant(softcap, dtype)
        scores = b.mul(b.tanh(b.div(scores, cap)), cap)
    queries, keys = q.shape[-2], k.shape[-2]
    seen = None
    if is_causal or window is not None:
        position = b.reshape(b.iota(length=queries, start=keys - queries), shape=(queries, 1))
        key = b.reshape(b.iota(length=keys), shape=(1, keys))
        if is_causal:
            seen = b.le(key, position)
        if window is not None:
            near = b.gt(key, b.sub(position, b.constant(window, position.dtype)))
            seen = near if seen is None else b.and_(seen, near)
    if mask is not None and mask.dtype != bool_:
        scores = b.add(scores, mask)
    elif mask is not None:
        seen = mask if seen is None else b.and_(mask, seen)
    if seen is None and mask is None:
        return b.matmul(b.softmax(scores, axis=-1), v)
    if sinks is not None:
        sinks = b.cast(b.reshape(sinks, shape=(heads, 1, 1)), dtype=dtype)
    weights = _softmax_of_seen(b, scores, seen, sinks)
    result = b.matmul(weights, v)
    if unseen == 0 or sinks is not None:
        return result
    sees = b.any(b.ne(weights, b.constant(0.0, dtype)), axes=(-1,), keepdims=True)
    return b.where(sees, result, b.constant(unseen, dtype))


def _softmax_of_seen(b, scores, seen, sinks):
    """Softmax in which a row without a visible key gives 0, not NaN; of the sinks, no weights."""
    dtype = scores.dtype
    nothing = b.constant(float("-inf"), dtype)
    if seen is not None:
        scores = b.where(seen, scores, nothing)
    top = b.max(scores, axes=(-1,), keepdims=True)
    if sinks is not None:
        top = b.maximum(top, sinks)
    zero = b.constant(0.0, dtype)
    top = b.where(b.eq(top, nothing), zero, top)
    e = b.exp(b.sub(scores, top))
    total = b.sum(e, axes=(-1,), keepdims=True)
    if sinks is not None:
        total = b.add(total, b.exp(b.sub(sinks, top)))
    return b.mul(e, b.reciprocal(b.where(b.eq(total, zero), b.constant(1.0, dtype), total)))


def _repeat_heads(b, x, group: int):
    *batch, kv_heads, keys, size = x.shape
    grouped = b.reshape(x, shape=(*batch, kv_heads, 1, keys, size))
    wide = b.broadcast_to(grouped, shape=(*batch, kv_heads, group, keys, size))
    return b.reshape(wide, shape=(*batch, kv_heads * group, keys, size))


@op(kind="state")
def kv_append(pool, x, slots):
    """The pool of keys, or of values, with those of T new tokens written at their slots.

    pool: [pages, G, W, D] (see KVLayout); x: [T, G, D]; slots: [T] integers, page * W + offset.
    A negative slot writes nothing. Slots must differ. The pool's dtype may be narrower than x's.
    """
    if pool.rank != 4 or x.rank != 3 or slots.rank != 1:
        raise TypeError(f"pool is {pool}, x is {x}, slots is {slots}: see KVLayout")
    if (pool.shape[1], pool.shape[3]) != x.shape[1:] or slots.shape[0] != x.shape[0]:
        raise TypeError(f"pool is {pool}, x is {x}, slots is {slots}: heads, size or tokens differ")
    return pool


@kv_append.set_axes
def _(pool, x, slots):
    """Tokens go where their slots say, which is no axis of the pool."""
    slots_pick = "slots pick along"
    return (slots_pick, 1, slots_pick, 3), (None, 1, 3), (None,)


@kv_append.set_reference
def _(pool, x, slots):
    pool = pool.copy()
    keep = slots >= 0
    page, offset = np.divmod(slots[keep], pool.shape[2])
    pool[page, :, offset] = x[keep]
    return pool


@op(kind="attention", strided=("q",))
def paged_attention(
    q,
    k_pool,
    v_pool,
    page_table,
    query_starts,
    context_lens,
    heads=None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    seen: str | None = None,
    bias: str | None = None,
    sink: int | None = None,
):
    """Causal attention of T new tokens, of B sequences laid end to end, over their cached pages.

    q: [T, H, D]; k_pool: [pages, G, W, D], v_pool: [pages, G, W, Dv], the new tokens already
    appended; page_table: [B, max_pages], the pages of a sequence in order; query_starts: [B + 1],
    tokens [query_starts[i], query_starts[i + 1]) are of sequence i (rows past query_starts[B] are
    padding: their output is unspecified); context_lens: [B], tokens in the cache, new ones
    included. A new token sees the cached tokens up to itself, the last `window` of them only when
    given. -> [T, H, Dv].

    heads: [H, n] f32, numbers of each query head. `seen` says which keys are seen besides, `bias`
    is added to a scaled and capped score: expressions of ir/scalar.py over `position`, of the
    token, and `key`, of the cached one, in their sequence, as i32 in `seen` and as f32 in `bias`,
    which may use the numbers head0, head1, ... as well. `sink`: the column of `heads` that is the
    score of one more key, whose value is 0.
    """
    columns = 0 if heads is None else heads.shape[-1]
    if heads is not None and (heads.shape, heads.dtype) != ((q.shape[1], columns), f32):
        raise TypeError(f"heads are {heads}: must be f32[{q.shape[1]}, n]")
    if sink is not None and not 0 <= sink < columns:
        raise TypeError(f"sink {sink} is none of {columns} columns of heads")
    score_trees(seen, bias, columns)
    if q.rank != 3 or k_pool.rank != 4 or v_pool.rank != 4 or page_table.rank != 2:
        raise TypeError(
            f"q is {q}, k_pool is {k_pool}, v_pool is {v_pool}, page_table is {page_table}:"
            " see KVLayout"
        )
    if k_pool.shape[:3] != v_pool.shape[:3]:
        raise TypeError(f"k_pool is {k_pool}, v_pool is {v_pool}: pages or heads differ")
    if q.shape[2] != k_pool.shape[3] or q.shape[1] % k_pool.shape[1]:
        raise TypeError(f"q is {q}, k_pool is {k_pool}: head size or number of heads do not fit")
    sequences = page_table.shape[0]
    if query_starts.shape != (sequences + 1,) or context_lens.shape != (sequences,):
        raise TypeError(
            f"page_table is {page_table}, query_starts {query_starts}, context_lens {context_lens}"
        )
    for given in (page_table, query_starts, context_lens):
        if given.dtype != i32:
            raise TypeError(f"page_table, query_starts and context_lens must be i32, not {given}")
    return q.with_shape((*q.shape[:2], v_pool.shape[3]))


def score_trees(
    seen: str | None, bias: str | None, columns: int
) -> tuple[Scalar | None, Scalar | None]:
    """The expressions of `paged_attention`, parsed. TypeError where one cannot be read."""
    names = "position", "key"
    heads = (f"head{i}" for i in range(columns))
    try:
        return (
            None if seen is None else parse_scalar(seen, names, ()),
            None if bias is None else parse_scalar(bias, (*names, *heads), ()),
        )
    except (KeyError, RecursionError, SyntaxError, ValueError) as error:
        raise TypeError(f"seen is {seen!r}, bias is {bias!r}: {error}") from error


@paged_attention.set_axes
def _(q, *others, **attrs):
    """Each token meets the cached ones of its own sequence, of which none is an operand's axis."""
    heads = "heads share keys along"
    return ((0, heads, "it sums over"), *(("it looks up pages along",) * x.rank for x in others))


@paged_attention.set_refusal
def _(q, k_pool, v_pool, *metadata, **attrs):
    return _refusal(q, k_pool, v_pool)


@paged_attention.set_reference
def _(q, k_pool, v_pool, page_table, query_starts, context_lens, heads=None, **attrs):
    scale, window, softcap, sink = (attrs[n] for n in ("scale", "window", "softcap", "sink"))
    columns = 0 if heads is None else heads.shape[1]
    picks, adds = score_trees(attrs["seen"], attrs["bias"], columns)
    numbers = {f"head{i}": heads[:, i, None, None] for i in range(columns)}
    out = np.zeros((*q.shape[:2], v_pool.shape[3]), q.dtype)
    kv_heads, page_size = k_pool.shape[1:3]
    group = q.shape[1] // kv_heads
    for i, context in enumerate(context_lens):
        start, stop = int(query_starts[i]), int(query_starts[i + 1])
        if start == stop:
            continue
        pages = page_table[i, : -(-int(context) // page_size)]
        # [pages, G, W, D] -> [G, tokens, D], then only the tokens there are
        keys, values = (
            np.repeat(x.reshape(kv_heads, -1, x.shape[3])[:, :context], group, 0)
            for x in (k_pool[pages].swapaxes(0, 1), v_pool[pages].swapaxes(0, 1))
        )
        heads_first = q[start:stop].transpose(1, 0, 2)
        scores = (heads_first @ keys.transpose(0, 2, 1)) * q.dtype.type(scale)
        position = np.arange(context - (stop - start), context, dtype=np.int32)[:, None]
        key = np.arange(context, dtype=np.int32)[None, :]
        seen = visible(position, key, True, window)
        if picks is not None:
            seen = seen & evaluate_scalar(picks, {"position": position, "key": key}, {})
        bias = None
        if adds is not None:
            at = {"position": position.astype(q.dtype), "key": key.astype(q.dtype)}
            bias = np.asarray(evaluate_scalar(adds, at | numbers, {}), q.dtype)
        sinks = None if sink is None else heads[:, sink]
        weights = masked_softmax(scores, seen, bias, softcap, sinks)
        out[start:stop] = (weights @ values).transpose(1, 0, 2)
    return out
