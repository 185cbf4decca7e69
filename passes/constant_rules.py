"""Rules around constants, index sources and dims: part of `canonicalize`."""

import math
import operator
from collections.abc import Callable

from ..ir.builder import Builder
from ..ir.facts import Facts
from ..ir.graph import Node, Value
from ..ir.op import normalize_axis
from ..ir.ranges import UNKNOWN, Ranges
from ..ir.types import bool_
from .patterns import Any_, Numeral, OneOf, pat
from .rewrite import rule, rules_among

x, y = Any_("x"), Any_("y")
_source = OneOf(pat.iota(bind="source"), pat.dim_value(bind="source"))
_known = OneOf(Numeral("c"), pat.dim_value(bind="dim"))


@rule(
    pat.add(x, Numeral("zero", value=0), bind="root"),
    pat.sub(x, Numeral("zero", value=0), bind="root"),
)
def neutral_term(b: Builder, x: Value, zero: float, root: Node):
    """x + 0, x - 0  ->  x; of floats x + -0.0 and x - 0.0, which alone leave x = -0.0 as it is"""
    if x.dtype.is_float and (math.copysign(1, zero) < 0) != (root.op.name == "add"):
        return None
    return x if x.type == root.results[0].type else None


@rule(pat.mul(x, Numeral(value=1), bind="root"), pat.div(x, Numeral(value=1), bind="root"))
def neutral_factor(b: Builder, x: Value, root: Node):
    """x * 1, x / 1  ->  x"""
    return x if x.type == root.results[0].type else None


_POWERS: dict[float, Callable[[Builder, Value], Value]] = {
    -1: lambda b, x: b.reciprocal(x),
    -0.5: lambda b, x: b.rsqrt(x),
    0.5: lambda b, x: b.sqrt(x),
    1: lambda b, x: x,
    2: lambda b, x: b.mul(x, x),
    3: lambda b, x: b.mul(b.mul(x, x), x),
}


@rule(pat.pow(x, Numeral("power"), bind="root"))
def small_power(b: Builder, x: Value, power: float, root: Node):
    """x ** 2  ->  x * x, and the like for 0.5, 1, 3, -0.5, -1"""
    return _POWERS[power](b, x) if x.type == root.results[0].type and power in _POWERS else None


@rule(pat.reciprocal(pat.sqrt(x)), pat.div(Numeral(value=1), pat.sqrt(x), bind="root"))
def one_over_root(b: Builder, x: Value, root: Node | None = None):
    """1 / sqrt(x)  ->  rsqrt(x)"""
    return b.rsqrt(x)


@rule(pat.neg(pat.neg(x)), pat.not_(pat.not_(x)), may_share=True)
def twice_negated(b: Builder, x: Value):
    """-(-x), not(not(x))  ->  x"""
    return x


@rule(pat.and_(x, Numeral("known"), bind="root"), pat.or_(x, Numeral("known"), bind="root"))
def known_side(b: Builder, x: Value, known: bool, root: Node):
    """x and true, x or false  ->  x;  x and false, x or true  ->  the constant"""
    if x.dtype is not bool_:
        return None
    if bool(known) == (root.op.name == "and"):
        return x if x.type == root.results[0].type else None
    return b.full(value=bool(known), shape=root.results[0].shape, dtype=bool_)


@rule(pat.where(Numeral("known"), x, y, bind="root"))
def known_condition(b: Builder, known: bool, x: Value, y: Value, root: Node):
    """where(true, x, y)  ->  x"""
    return b.broadcast_to(x if known else y, shape=root.results[0].shape)


@rule(pat.where(Any_("c"), x, x, bind="root"))
def same_branches(b: Builder, c: Value, x: Value, root: Node):
    """where(c, x, x)  ->  x"""
    return b.broadcast_to(x, shape=root.results[0].shape)


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


@rule(pat.cumsum(pat.full(bind="full"), bind="root"))
def sum_of_constant(b: Builder, full: Node, root: Node):
    """cumsum(full) of integers  ->  an iota along the axis"""
    (shape, dtype), step = (root.results[0].shape, root.results[0].dtype), full.attrs["value"]
    axis = normalize_axis(root.attrs["axis"], len(shape))
    if not dtype.is_integer or dtype.bits < 32:
        return None
    steps = b.iota(length=shape[axis], start=step, step=step, dtype=dtype)
    alone = (1,) * axis + shape[axis : axis + 1] + (1,) * (len(shape) - axis - 1)
    return b.broadcast_to(b.reshape(steps, shape=alone), shape=shape)


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


@rule(pat.cast(_source, bind="root"))
def cast_of_source(b: Builder, source: Node, root: Node):
    """cast(iota), cast(dim_value) to integers  ->  the same of that dtype"""
    (value,), dtype = source.results, root.results[0].dtype
    if not dtype.is_integer:
        return None
    if dtype.bits > value.dtype.bits and Ranges(Facts(b.symbols)).of(value) == UNKNOWN:
        return None  # it may have wrapped round in the dtype that it had
    return b.node(source.op, [], {**source.attrs, "dtype": dtype}).result


@rule(
    pat.add(_source, _known, bind="root"),
    pat.sub(_source, _known, bind="root"),
    pat.mul(pat.dim_value(bind="source"), _known, bind="root"),
)
def source_with_known(
    b: Builder, source: Node, root: Node, c: float | None = None, dim: Node | None = None
):
    """iota + c, iota + dim  ->  iota that starts later;  dim_value(i) + c  ->  dim_value(i + c)

    And for -, and for * of a dim_value.
    """
    by = c if dim is None else dim.attrs["value"]
    if isinstance(by, float) or root.results[0].type != source.results[0].type:
        return None
    name = "start" if "start" in source.attrs else "value"
    value = _EXACT[root.op.name](source.attrs[name], by)
    return b.node(source.op, [], {**source.attrs, name: value}).result


_EXACT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


@rule(pat.dim_value(value=lambda v: isinstance(v, int), bind="root"))
def known_dim(b: Builder, root: Node):
    """dim_value of a number  ->  full"""
    return b.constant(root.attrs["value"], root.attrs["dtype"])


CONSTANT_RULES = rules_among(globals())
