"""Hypothesis strategies: dims, and graphs of random ops."""

from hypothesis import strategies as st

from tilewright.ir import dim as dims
from tilewright.ir.builder import Builder
from tilewright.ir.dim import Symbol
from tilewright.ir.types import bf16, bool_, f16, f32, f64, i32, i64

NAMES = ("a", "b", "s")
CALLS = (dims.floordiv, dims.mod, dims.minimum, dims.maximum, dims.ceildiv)


def dim_expressions(names=NAMES, size=8):
    """Dims over `names`: polynomials with quotients, remainders, minima and maxima."""
    leaves = st.one_of(st.integers(-9, 20), st.sampled_from([dims.symbol(n) for n in names]))
    positive = st.one_of(st.integers(1, 16), st.sampled_from([dims.symbol(n) for n in names]))

    def grow(inner):
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
            st.tuples(st.sampled_from(CALLS[:2]), inner, positive).map(lambda p: p[0](p[1], p[2])),
            st.tuples(st.sampled_from(CALLS[2:4]), inner, inner).map(lambda p: p[0](p[1], p[2])),
            st.tuples(inner, st.integers(1, 16)).map(lambda p: dims.ceildiv(*p)),
        )

    return st.recursive(leaves, grow, max_leaves=size)


@st.composite
def symbols(draw, names=NAMES):
    """Declarations of `names`, with ranges of positive numbers, and multiples."""
    declared = {}
    for name in names:
        multiple = draw(st.sampled_from((1, 1, 1, 2, 8)))
        low = draw(st.integers(1, 4)) * multiple
        high = draw(st.one_of(st.none(), st.integers(0, 6).map(lambda k, m=multiple: k * m)))
        top = None if high is None else low + high
        declared[name] = Symbol(name, low, top, multiple)
    return declared


@st.composite
def values_of(draw, declared):
    """A value in range for each declared symbol."""
    values = {}
    for s in declared.values():
        most = s.lo + 5 * s.multiple if s.hi is None else s.hi
        steps = (most - s.lo) // s.multiple
        values[s.name] = s.lo + draw(st.integers(0, steps)) * s.multiple
    return values


KINDS = (
    "unary", "binary", "view", "reduce", "row", "cast", "constant", "where", "lookup", "attention",
)  # fmt: skip
UNARY = ("neg", "exp", "abs", "sin", "tanh", "sigmoid", "silu", "gelu", "relu", "floor", "sqrt")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


@st.composite
def graphs(draw, max_nodes=12, dtypes=(f32,)):
    """A graph of elementwise ops, views, reductions, products, norms and constants."""
    b = Builder("random")
    t = b.dim("t", 1, 9)
    dtype = draw(st.sampled_from(dtypes))
    # a square one, in which rows and columns are mistaken for each other most easily
    shapes = {"x": (t, 4), "y": (2, t, 4), "z": (4, 4)}
    pool = [b.input(name, shape, dtype) for name, shape in shapes.items()]
    pool.append(b.weight("w", (4,), dtype))
    square, row = b.weight("m", (4, 4), dtype), b.weight("g", (4,), dtype)
    for _ in range(draw(st.integers(1, max_nodes))):
        # mostly what was made last, so that most nodes are live
        x = draw(st.sampled_from(pool[-2:] if draw(st.booleans()) else pool))
        made = _step(draw, b, x, pool, square, row)
        if made is not None:
            pool.append(made)
    more = draw(st.lists(st.sampled_from(pool), max_size=2))
    return b.graph([pool[-1], *more])


def _step(draw, b, x, pool, square, row):
    if not x.type.rank:
        return b.exp(x)
    kind = draw(st.sampled_from(KINDS))
    if kind == "unary":
        return getattr(b, draw(st.sampled_from(UNARY)))(x)
    if kind == "binary":
        fitting = [y for y in pool if y.shape in (x.shape, x.shape[-1:], ())]
        lower = [y for y in fitting if y.type.rank < x.type.rank]
        others = lower if lower and draw(st.booleans()) else fitting
        others = others[-2:] if draw(st.booleans()) else others
        return getattr(b, draw(st.sampled_from(BINARY)))(x, draw(st.sampled_from(others)))
    if kind == "constant":
        number = b.constant(draw(st.sampled_from((0.0, 1.0, 0.5, -2.0))), x.dtype)
        return getattr(b, draw(st.sampled_from(BINARY)))(x, number)
    if kind == "where":
        others = [y for y in pool if y.shape == x.shape]
        condition = b.le(x, draw(st.sampled_from(others)))
        return b.where(condition, x, draw(st.sampled_from(others)))
    if kind == "lookup":
        axis = draw(st.integers(0, x.type.rank - 1))
        index = b.argmax(b.softmax(x, axis=-1), axis=axis, keepdims=True)
        if draw(st.booleans()):
            return b.broadcast_to(b.gather_elements(x, index, axis=axis), shape=x.shape)
        flat = b.reshape(index, shape=(dims.product(index.shape),))
        return b.gather(x, flat, axis=axis)
    if kind == "attention":
        if x.type.rank != 3 or not isinstance(x.shape[0], int):
            return None
        return b.attention(
            x,
            x,
            x,
            scale=0.5,
            is_causal=draw(st.booleans()),
            softcap=draw(st.sampled_from((None, 2.0))),
        )
    if kind == "cast":
        return b.cast(b.cast(x, dtype=f64), dtype=x.dtype)
    if kind == "reduce":
        op = draw(st.sampled_from(("sum", "mean", "max", "min")))
        axis = draw(st.integers(-x.type.rank, -1))
        if draw(st.booleans()):
            return getattr(b, op)(x, axes=(axis,))
        return b.broadcast_to(getattr(b, op)(x, axes=(axis,), keepdims=True), shape=x.shape)
    if kind == "row":
        if x.shape[-1] != 4 or x.type.rank < 2:
            return None
        return draw(
            st.sampled_from(
                (
                    lambda: b.matmul(x, square, transpose_w=True),
                    lambda: b.matmul(x, square),
                    lambda: b.rms_norm(x, row),
                    lambda: b.softmax(x, axis=-1),
                )
            )
        )()
    return _view(draw, b, x)


def _view(draw, b, x):
    shape, rank = x.shape, x.type.rank
    if rank < 2:
        return b.reshape(x, shape=(1, *shape))
    if draw(st.booleans()):
        perm = draw(st.permutations(range(rank)))
        return b.transpose(x, perm=tuple(perm))
    axis = draw(st.integers(0, rank - 1))
    size = shape[axis]
    if not isinstance(size, int) or size < 2:
        return b.reshape(x, shape=(*shape[:axis], 1, *shape[axis:]))
    half = size // 2
    low = b.slice(x, axis=axis, start=0, stop=half)
    high = b.slice(x, axis=axis, start=half, stop=size)
    return b.concat(high, low, axis=axis)


ANY_DTYPES = (f32, f64, f16, bf16)
INTEGERS = (i64, i32, bool_)
