"""Steps of random graphs that are products, or work on rows: norms, attention, windows, codes."""

from tilewright.ir.graph import Value
from tilewright.ir.op import Op
from tilewright.ir.ops.contract import ACTIVATIONS
from tilewright.ir.ops.view import window_span
from tilewright.ir.types import bool_, f32, i8, i32, i64

from .random_graphs import ANY, FLOATS, PACKED, Declined, Pool, broadcasts


def matmul(pool: Pool, op: Op) -> Value:
    x = pool.ranked(2)
    if x.dtype == bool_:
        x = pool.cast(x, pool.among(FLOATS))
    transposed, columns = pool.flip(), pool.dim()
    batch = pool.among(((), (), x.shape[:-2], tuple(1 for _ in x.shape[:-2])))
    shape = (columns, x.shape[-1]) if transposed else (x.shape[-1], columns)
    found = [y for y in pool.values if y.shape[-2:] == shape]
    found = [y for y in found if broadcasts(y.shape[:-2], x.shape[:-2]) is not None]
    if found and pool.flip():
        w = pool.cast(pool.among(found), x.dtype)
    else:
        w = pool.fitted((*batch, *shape), x.dtype)
    return pool.b.matmul(x, w, transpose_w=transposed)


def norm(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    x = x if x.dtype in FLOATS else pool.cast(x, pool.among(FLOATS))
    rows = [pool.fitted(x.shape[-1:], x.dtype) for _ in op.operands[1:]]
    return pool.node(op, [x, *rows], {"eps": pool.among((1e-5, 1e-2))})[0]


def softmax(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    x = x if x.dtype in FLOATS else pool.cast(x, pool.among(FLOATS))
    return pool.b.softmax(x, axis=pool.axis(x))


def attention(pool: Pool, op: Op) -> Value:
    dtype, batch = pool.among(FLOATS), pool.shape(1)
    heads, group = pool.among((1, 2)), pool.among((1, 2))
    size, width = pool.among((2, 4, 5)), pool.among((2, 3))
    queries, keys = pool.dim(), pool.dim()
    q = pool.fitted((*batch, heads * group, queries, size), dtype)
    k = pool.fitted((*batch, heads, keys, size), dtype)
    v = pool.fitted((*batch, heads, keys, width), dtype)
    mask = []
    if pool.flip():
        shapes = ((queries, keys), (1, keys), (heads * group, queries, keys), (keys,))
        mask.append(pool.fitted(pool.among(shapes), pool.among((bool_, dtype))))
    attrs = {
        "scale": pool.among((0.5, 1.0)),
        "is_causal": pool.flip(),
        "window": pool.among((None, None, 1, 3)),
        "softcap": pool.among((None, None, 2.0)),
    }
    return pool.b.attention(q, k, v, *mask, **attrs)


def gated_linear(pool: Pool, op: Op) -> Value:
    x = pool.ranked(2)
    x = pool.cast(x, x.dtype if x.dtype in FLOATS else pool.among(FLOATS))
    shape = (pool.dim(), x.shape[-1])
    gates = (pool.fitted(shape, x.dtype) for _ in range(2))
    return pool.b.gated_linear(x, *gates, activation=pool.among(ACTIVATIONS))


def grouped(pool: Pool, op: Op) -> Value:
    """Rows with a matrix each; the size of the last axis is the same for all."""
    is_gated = op.name == "grouped_gated_linear"
    rows, groups, inner, width = (pool.dim() for _ in range(4))
    dtype = pool.among(FLOATS if is_gated else ANY[:-1])
    transposed = is_gated or pool.flip()
    shape = (groups, width, inner) if transposed else (groups, inner, width)
    x, index = pool.fitted((rows, inner), dtype), pool.index(groups, (rows,))
    ws = [pool.fitted(shape, dtype) for _ in range(2 if is_gated else 1)]
    attrs = {"activation": pool.among(ACTIVATIONS)} if is_gated else {"transpose_w": transposed}
    return pool.node(op, [x, *ws, index], attrs)[0]


def conv(pool: Pool, op: Op) -> Value:
    dtype, spatial, groups = pool.among(FLOATS), pool.whole(1, 2), pool.among((1, 1, 2, 3))
    inner, outer = (pool.whole(1, 3) for _ in range(2))
    kernel, strides, dilation = (
        tuple(pool.whole(1, most) for _ in range(spatial)) for most in (3, 2, 2)
    )
    x = pool.fitted((pool.dim(), groups * inner, *(pool.dim() for _ in kernel)), dtype)
    for axis, (size, apart) in enumerate(zip(kernel, dilation), 2):
        x = pool.b.pad(x, axis=axis, before=pool.whole(0, 2), after=pool.whole(0, 2))
        if not pool.facts.proved_le(window_span(size, apart), x.shape[axis]):
            raise Declined
    w = pool.fitted((groups * outer, inner, *kernel), dtype)
    return pool.b.conv(x, w, strides=strides, dilation=dilation, groups=groups)


def dequantize(pool: Pool, op: Op) -> Value:
    parts, group, rows = pool.whole(1, 3), pool.among((1, 2, 4, 32)), pool.shape(1)
    if pool.flip():
        codes = pool.weight((*rows, parts * group), pool.among(PACKED))
        rows = codes.shape[:-1]
    else:
        whole = (dtype for dtype in ANY if dtype.is_integer)
        codes = pool.fitted((*rows, parts * group), pool.among(whole))
    shared = [pool.fitted((*rows, parts), pool.among(FLOATS))]
    if pool.flip():
        shared.append(pool.fitted((*rows, parts), pool.among((*FLOATS, i8, i32))))
    return pool.b.dequantize(codes, *shared, dtype=pool.among(FLOATS))


def rope(pool: Pool, op: Op) -> Value:
    dtype, shape = pool.among(FLOATS), (*pool.shape(2), pool.among((2, 4, 16)))
    tables = [
        pool.fitted((*(pool.among((1, d)) for d in shape[:-1]), shape[-1]), dtype) for _ in range(2)
    ]
    return pool.b.rope(pool.fitted(shape, dtype), *tables)


def sample(pool: Pool, op: Op) -> Value:
    b, rows, columns = pool.b, (pool.dim(),), pool.among((1, 3, 17, 40))
    temperature = b.abs(b.cast(pool.fitted(rows, i8), dtype=f32))  # callers see to it: no NaN
    top_k = b.mod(pool.fitted(rows, i32), pool.number(6, i32))
    top_p = b.sigmoid(b.cast(pool.fitted(rows, i8), dtype=f32))
    seed, step = pool.fitted(rows, i64), pool.fitted(rows, i64)
    logits = pool.fitted((*rows, columns), f32)
    return b.sample(logits, temperature, top_k, top_p, seed, step)


ROWS = {
    "matmul": matmul, "gated_linear": gated_linear, "grouped_matmul": grouped,
    "grouped_gated_linear": grouped, "conv": conv, "dequantize": dequantize, "rope": rope,
    "rms_norm": norm, "layer_norm": norm, "softmax": softmax, "attention": attention,
    "sample": sample,
}  # fmt: skip
