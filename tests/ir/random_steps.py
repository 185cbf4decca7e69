"""Steps of random graphs that need more than an op's declaration says."""

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.dim import Dim, product
from tilewright.ir.graph import Graph, Value
from tilewright.ir.host_functions import register_function
from tilewright.ir.op import Op
from tilewright.ir.ops.scatter import COMBINES
from tilewright.ir.ops.view import window_span
from tilewright.ir.types import TensorType, bool_, i64

from .random_graphs import ALL, ANY, LARGEST, Declined, Pool, elements
from .random_rows import ROWS


def _replaced(shape, axis: int, *dims: Dim) -> tuple[Dim, ...]:
    return (*shape[:axis], *dims, *shape[axis + 1 :])


# ---- sources and views -----------------------------------------------------------------------


def full(pool: Pool, op: Op) -> Value:
    dtype = pool.among(ANY)
    value = pool.among((0, 1, 3) if not dtype.is_float else (0.0, -0.0, 1.5, -2.0, 1e-3))
    value = bool(value) if dtype == bool_ else value
    return pool.b.full(value=value, shape=pool.shape(), dtype=dtype)


def iota(pool: Pool, op: Op) -> Value:
    start, step = pool.among((0, 0, 3, *pool.dims)), pool.among((1, 1, 2, -1))
    dtype = pool.among((i64, *ANY[:-1]))
    return pool.b.iota(length=pool.dim(), start=start, step=step, dtype=dtype)


def dim_value(pool: Pool, op: Op) -> Value:
    return pool.b.dim_value(value=pool.dim())


def cast(pool: Pool, op: Op) -> Value:
    return pool.cast(pool.value(), pool.among(ALL))


def reshape(pool: Pool, op: Op) -> Value:
    x = pool.value()
    shape, rank = x.shape, x.type.rank
    axis = pool.whole(0, rank - 1) if rank else 0
    whole = shape[axis] if rank else 1
    factors = [k for k in (2, 3, 4) if isinstance(whole, int) and whole % k == 0]
    shapes = [
        (*shape[:axis], 1, *shape[axis:]),
        (product(shape),),
        tuple(d for d in shape if d != 1),
        *(_replaced(shape, axis, whole // k, k) for k in factors if rank),
    ]
    if axis + 1 < rank:
        shapes.append((*shape[:axis], whole * shape[axis + 1], *shape[axis + 2 :]))
    return pool.b.reshape(x, shape=pool.among(shapes))


def broadcast_to(pool: Pool, op: Op) -> Value:
    x = pool.value()
    shape = tuple(pool.dim() if d == 1 and pool.flip() else d for d in x.shape)
    return pool.b.broadcast_to(x, shape=(*pool.shape(1), *shape))


def slice_(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    axis = pool.axis(x)
    size = x.shape[axis]
    ends = [d for d in (0, 1, 2, size - 1, size // 2, size) if pool.facts.proved_le(0, d)]
    ends = [d for d in ends if pool.facts.proved_le(d, size)]
    start = pool.among(ends)
    stop = pool.among(d for d in ends if pool.facts.proved_le(start, d))
    return pool.b.slice(x, axis=axis, start=start, stop=stop, step=pool.among((1, 1, 2, 3)))


def concat(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    axis = pool.axis(x) % x.type.rank
    parts = [x]
    for _ in range(pool.whole(1, 2)):
        same = [
            y
            for y in pool.values
            if y.type.rank == x.type.rank
            and _replaced(y.shape, axis, 0) == _replaced(x.shape, axis, 0)
        ]
        if pool.flip(3):
            parts.append(pool.fitted(_replaced(x.shape, axis, pool.dim()), x.dtype))
        else:
            parts.append(pool.cast(pool.among(same), x.dtype))
    return pool.b.concat(*parts, axis=axis)


def pad(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    before, after = (pool.among((0, 1, 2, pool.dims[0])) for _ in "ab")
    value = pool.among((0, 1) if x.dtype != bool_ else (False, True))
    if x.dtype.is_float:
        value = pool.among((0.0, 1.0, -0.5, float("-inf")))
    return pool.b.pad(x, axis=pool.axis(x), before=before, after=after, value=value)


def window(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    axis, size, step, dilation = pool.axis(x), *(pool.whole(1, 3) for _ in range(3))
    if not pool.facts.proved_le(window_span(size, dilation), x.shape[axis]):
        raise Declined
    return pool.b.window(x, axis=axis, size=size, step=step, dilation=dilation)


# ---- lookups and orders ------------------------------------------------------------------------


def gather(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    axis = pool.axis(x)
    return pool.b.gather(x, pool.index(x.shape[axis], pool.shape(2)), axis=axis)


def gather_elements(pool: Pool, op: Op) -> Value:
    x = pool.ranked()
    axis = pool.axis(x) % x.type.rank
    shape = _replaced(x.shape, axis, pool.dim())
    return pool.b.gather_elements(x, pool.index(x.shape[axis], shape), axis=axis)


def check_index(pool: Pool, op: Op) -> Value:
    """From the end, and used at once: what it finds out is no concern of a node that is dead."""
    x = pool.ranked()
    axis = pool.axis(x)
    size, b = x.shape[axis], pool.b
    at = pool.index(size, pool.shape(1))
    if pool.flip():
        at = b.sub(at, b.dim_value(value=size, dtype=at.dtype))
        return b.gather(x, b.check_index(at, size=size, wraps=True), axis=axis)
    return b.gather(x, b.check_index(at, size=size), axis=axis)


def scatter(pool: Pool, op: Op) -> Value:
    x, combine = _combined(pool)
    axis = pool.axis(x) % x.type.rank
    shape = pool.shape(2)
    index = pool.index(x.shape[axis], shape)
    updates = pool.fitted(_replaced(x.shape, axis, *shape), x.dtype)
    return pool.b.scatter(x, index, updates, axis=axis, combine=combine)


def scatter_elements(pool: Pool, op: Op) -> Value:
    x, combine = _combined(pool)
    axis = pool.axis(x) % x.type.rank
    shape = _replaced(x.shape, axis, pool.dim())
    index = pool.index(x.shape[axis], shape)
    updates = pool.fitted(shape, x.dtype)
    return pool.b.scatter_elements(x, index, updates, axis=axis, combine=combine)


def _combined(pool: Pool) -> tuple[Value, str]:
    x = pool.ranked()
    return x, pool.among(c for c in COMBINES if x.dtype != bool_ or c not in ("add", "mul"))


def topk(pool: Pool, op: Op):
    x = pool.ranked()
    axis = pool.axis(x)
    size = x.shape[axis]
    sizes = [d for d in (0, 1, 3, size - 1, size // 2, size) if pool.facts.proved_le(0, d)]
    k = pool.among(d for d in sizes if pool.facts.proved_le(d, size))
    return pool.b.topk(x, k=k, axis=axis, largest=pool.flip())


# ---- regions and calls -------------------------------------------------------------------------


def _region(pool: Pool, name: str, types: list[TensorType], results) -> Graph:
    """A sub-graph of a few nodes; `results` makes its outputs of the pool inside of it."""
    b = Builder(name, pool.b.symbols.values())
    inside = Pool(pool.rng, b, pool.dims, regions=False, weights=False)
    inside.values = [b.input(f"x{i}", type.shape, type.dtype) for i, type in enumerate(types)]
    taken = list(inside.values)
    inside.grow(pool.whole(1, 3))
    return b.graph(results(inside, taken))


def _like(pool: Pool, types) -> list[Value]:
    return [pool.fit(pool.value(), type.shape, type.dtype) for type in types]


def cond(pool: Pool, op: Op):
    operands = [pool.value() for _ in range(pool.whole(1, 3))]
    types = [v.type for v in operands]
    results = [pool.among(types) for _ in range(pool.whole(1, 2))]
    then, otherwise = (
        _region(pool, name, types, lambda inside, _: _like(inside, results))
        for name in ("then", "otherwise")
    )
    return pool.b.cond(pool.fitted((), bool_), *operands, then=then, otherwise=otherwise)


def while_loop(pool: Pool, op: Op):
    b, count = pool.b, TensorType((), i64)
    times = b.mod(pool.fitted((), i64), b.constant(pool.whole(1, 4), i64))
    carried = [pool.value() for _ in range(pool.whole(1, 2))]
    operands = [b.constant(0, i64), *carried, times, *([pool.value()] if pool.flip() else [])]
    types = [v.type for v in operands]
    last = len(carried) + 1

    def step(inside: Pool, taken: list[Value]) -> list[Value]:
        one = inside.b.constant(1, i64)
        return [inside.b.add(taken[0], one), *_like(inside, types[1:last])]

    condition = Builder("condition", b.symbols.values())
    taken = [condition.input(f"x{i}", type.shape, type.dtype) for i, type in enumerate(types)]
    assert types[last] == count
    return b.while_loop(
        *operands,
        carried=last,
        condition=condition.graph([condition.lt(taken[0], taken[last])]),
        body=_region(pool, "body", types, step),
    )[1:]


def scan(pool: Pool, op: Op):
    count = pool.among((0, 1, 3, *pool.dims[:1]))
    carried = [pool.value() for _ in range(pool.whole(1, 2))]
    stacked = [
        pool.fitted((count, *pool.shape(1)), pool.among(ANY)) for _ in range(pool.whole(0, 2))
    ]
    kept = [pool.value()] if pool.flip() else []
    slices = [v.type.with_shape(v.shape[1:]) for v in stacked]
    types = [*(v.type for v in carried), *slices, *(v.type for v in kept)]
    rows = [pool.among(types) for _ in range(pool.whole(0, 2))]
    wanted = [*types[: len(carried)], *rows]
    body = _region(pool, "body", types, lambda inside, _: _like(inside, wanted))
    attrs = {"carried": len(carried), "stacked": len(stacked), "count": count, "body": body}
    return pool.b.scan(*carried, *stacked, *kept, **attrs)


def _late(pool: Pool, most: int | None, at_most: int) -> str:
    """The name of a new dim; others may have it as a size where it is `at_most` small."""
    name = f"late{len(pool.b.symbols)}"
    dim = pool.b.dim(name, 0, most)
    if at_most <= LARGEST:
        pool.dims.append(dim)
    return name


def nonzero(pool: Pool, op: Op) -> Value:
    x = pool.value()
    return pool.b.nonzero(x, binds=(_late(pool, None, elements(x.shape)),))


def read_dim(pool: Pool, op: Op):
    number = pool.b.mod(pool.fitted((), i64), pool.number(7, i64))
    name = _late(pool, 6, 6)
    number = pool.b.read_dim(number, binds=(name,))
    return number, pool.b.iota(length=pool.dims[-1], dtype=pool.among(ANY[:-1]))


def call(pool: Pool, op: Op):
    """Two values the other way round, or those of a row that are not zero."""
    x, y = pool.value(), pool.value()
    if pool.flip():
        return pool.b.call(x, y, function="random.swapped", results=(y.type, x.type))
    if elements(x.shape) > LARGEST:
        raise Declined
    name = _late(pool, None, elements(x.shape))
    row = TensorType((pool.dims[-1],), x.dtype)
    return pool.b.call(x, function="random.nonzeros", results=(row,), binds=(name,))


register_function("random.swapped", lambda x, y: (y, x))
register_function("random.nonzeros", lambda x: x[np.not_equal(x, 0)])


STEPS = {
    "full": full, "iota": iota, "dim_value": dim_value, "cast": cast, "reshape": reshape,
    "broadcast_to": broadcast_to, "slice": slice_, "concat": concat, "pad": pad, "window": window,
    "gather": gather, "gather_elements": gather_elements, "check_index": check_index,
    "scatter": scatter, "scatter_elements": scatter_elements, "topk": topk, **ROWS,
    "cond": cond, "while_loop": while_loop, "scan": scan, "nonzero": nonzero, "read_dim": read_dim,
    "call": call,
}  # fmt: skip
