"""Rules around constants, index sources and dims: part of `canonicalize`."""

from ..ir.builder import Builder
from ..ir.graph import Node, Value
from ..ir.types import bool_
from .patterns import Any_, number, pat
from .rewrite import rule, rules_among

x, y = Any_("x"), Any_("y")


def _keeps_type(x: Value, root: Node) -> Value | None:
    return x if x.type == root.results[0].type else None


@rule(pat.add(x, number(value=0), bind="root"), pat.sub(x, number(value=0), bind="root"))
def plus_zero(b: Builder, x: Value, root: Node):
    """x + 0, x - 0  ->  x"""
    return _keeps_type(x, root)


@rule(pat.mul(x, number(value=1), bind="root"), pat.div(x, number(value=1), bind="root"))
def times_one(b: Builder, x: Value, root: Node):
    """x * 1, x / 1  ->  x"""
    return _keeps_type(x, root)


@rule(pat.pow(x, number("power"), bind="root"))
def small_power(b: Builder, x: Value, power: float, root: Node):
    """x ** 2  ->  x * x, and the like for 0.5, 1, 3, -0.5, -1"""
    if x.type != root.results[0].type:
        return None
    match power:
        case 1:
            return x
        case 2:
            return b.mul(x, x)
        case 3:
            return b.mul(b.mul(x, x), x)
        case 0.5:
            return b.sqrt(x)
        case -0.5:
            return b.rsqrt(x)
        case -1:
            return b.reciprocal(x)
    return None


@rule(pat.reciprocal(pat.sqrt(x)), pat.div(number(value=1), pat.sqrt(x), bind="root"))
def one_over_root(b: Builder, x: Value, root: Node | None = None):
    """1 / sqrt(x)  ->  rsqrt(x)"""
    return b.rsqrt(x)


@rule(pat.neg(pat.neg(x)), pat.not_(pat.not_(x)), may_share=True)
def twice_negated(b: Builder, x: Value):
    """-(-x), not(not(x))  ->  x"""
    return x


@rule(pat.and_(x, number("known"), bind="root"), pat.or_(x, number("known"), bind="root"))
def known_side(b: Builder, x: Value, known: bool, root: Node):
    """x and true, x or false  ->  x;  x and false, x or true  ->  the constant"""
    if x.dtype is not bool_:
        return None
    if bool(known) == (root.op.name == "and"):
        return _keeps_type(x, root)
    return b.full(value=bool(known), shape=root.results[0].shape, dtype=bool_)


@rule(pat.where(number("known"), x, y, bind="root"))
def known_condition(b: Builder, known: bool, x: Value, y: Value, root: Node):
    """where(true, x, y)  ->  x"""
    chosen = x if known else y
    shape = root.results[0].shape
    return chosen if chosen.shape == shape else b.broadcast_to(chosen, shape=shape)


@rule(pat.where(Any_("c"), x, x, bind="root"))
def same_branches(b: Builder, c: Value, x: Value, root: Node):
    """where(c, x, x)  ->  x"""
    shape = root.results[0].shape
    return x if x.shape == shape else b.broadcast_to(x, shape=shape)


@rule(pat.where(pat.not_(Any_("c")), x, y), may_share=True)
def negated_condition(b: Builder, c: Value, x: Value, y: Value):
    """where(not c, x, y)  ->  where(c, y, x)"""
    return b.where(c, y, x)


@rule(pat.cast(pat.full(bind="full"), bind="root"))
def cast_of_constant(b: Builder, full: Node, root: Node):
    """cast(full)  ->  full of the other dtype"""
    type = root.results[0].type
    value = type.dtype.element(full.attrs["dtype"].element(full.attrs["value"]))
    return b.full(value=value, shape=type.shape, dtype=type.dtype)


@rule(pat.iota(length=1, start=lambda start: isinstance(start, int), bind="root"))
def iota_of_one(b: Builder, root: Node):
    """iota of one element  ->  full"""
    return b.full(value=root.attrs["start"], shape=(1,), dtype=root.attrs["dtype"])


@rule(pat.slice(pat.iota(bind="iota"), bind="root"), may_share=True)
def slice_of_iota(b: Builder, iota: Node, root: Node):
    """slice(iota)  ->  iota that starts later"""
    start, step = iota.attrs["start"], iota.attrs["step"]
    return b.iota(
        length=root.results[0].shape[0],
        start=start + root.attrs["start"] * step,
        step=step * root.attrs["step"],
        dtype=iota.attrs["dtype"],
    )


@rule(pat.cast(pat.iota(bind="iota"), bind="root"), may_share=True)
def cast_of_iota(b: Builder, iota: Node, root: Node):
    """cast(iota) to integers  ->  iota of that dtype"""
    dtype = root.results[0].dtype
    if not dtype.is_integer:
        return None
    return b.node(iota.op, [], {**iota.attrs, "dtype": dtype}).result


@rule(
    pat.add(pat.iota(bind="iota"), number("c"), bind="root"),
    pat.sub(pat.iota(bind="iota"), number("c"), bind="root"),
    may_share=True,
)
def iota_plus_constant(b: Builder, iota: Node, c: int, root: Node):
    """iota + c  ->  iota that starts at start + c"""
    if not iota.results[0].dtype.is_integer or root.results[0].type != iota.results[0].type:
        return None
    start = iota.attrs["start"] + (c if root.op.name == "add" else -c)
    return b.node(iota.op, [], {**iota.attrs, "start": start}).result


@rule(
    pat.add(pat.iota(bind="iota"), pat.dim_value(bind="dim"), bind="root"),
    may_share=True,
)
def iota_plus_dim(b: Builder, iota: Node, dim: Node, root: Node):
    """iota + dim  ->  iota that starts at start + dim"""
    if root.results[0].type != iota.results[0].type:
        return None
    start = iota.attrs["start"] + dim.attrs["value"]
    return b.node(iota.op, [], {**iota.attrs, "start": start}).result


@rule(pat.dim_value(value=lambda v: isinstance(v, int), bind="root"))
def known_dim(b: Builder, root: Node):
    """dim_value of a number  ->  full"""
    return b.constant(root.attrs["value"], root.attrs["dtype"])


@rule(
    pat.add(pat.dim_value(bind="one"), pat.dim_value(bind="two")),
    pat.sub(pat.dim_value(bind="one"), pat.dim_value(bind="two"), bind="sub"),
    pat.mul(pat.dim_value(bind="one"), pat.dim_value(bind="two"), bind="mul"),
)
def dims_together(
    b: Builder, one: Node, two: Node, sub: Node | None = None, mul: Node | None = None
):
    """dim_value(i) + dim_value(j)  ->  dim_value(i + j), and for - and *"""
    i, j = one.attrs["value"], two.attrs["value"]
    value = i - j if sub else i * j if mul else i + j
    return b.dim_value(value=value, dtype=one.attrs["dtype"])


@rule(
    pat.add(pat.dim_value(bind="dim"), number("c"), bind="root"),
    pat.sub(pat.dim_value(bind="dim"), number("c"), bind="root"),
    pat.mul(pat.dim_value(bind="dim"), number("c"), bind="root"),
)
def dim_and_constant(b: Builder, dim: Node, c: int, root: Node):
    """dim_value(i) + c  ->  dim_value(i + c), and for - and *"""
    if not root.results[0].dtype.is_integer or root.results[0].type.rank:
        return None
    i = dim.attrs["value"]
    value = {"add": i + c, "sub": i - c, "mul": i * c}[root.op.name]
    return b.dim_value(value=value, dtype=dim.attrs["dtype"])


@rule(pat.cast(pat.dim_value(bind="dim"), bind="root"))
def cast_of_dim(b: Builder, dim: Node, root: Node):
    """cast(dim_value) to integers  ->  dim_value of that dtype"""
    dtype = root.results[0].dtype
    return b.dim_value(value=dim.attrs["value"], dtype=dtype) if dtype.is_integer else None


CONSTANT_RULES = rules_among(globals())
