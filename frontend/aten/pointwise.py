"""Elementwise arithmetic and casts."""

import math
from typing import Any

from ...ir import types
from ...ir.graph import Value
from ..importer import Call, Declined, Scalar, handles
from ..nn.division import fmod, truncated_div, with_sign_of_zero
from ..nn.powers import integer_power, whole_power

Operand = Value | Scalar


def overloads(*names: str, kinds: str = "Tensor Scalar") -> list[str]:
    """`add` -> `add.Tensor`, `add.Scalar`."""
    return [f"{name}.{kind}" for name in names for kind in kinds.split()]


def binary(call: Call, op: str, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    """One of our binary ops on operands cast to the result's dtype.

    The right side of a product or a quotient, where it has no axes, meets narrow floats unrounded:
    it is a number of torch's kernels, whose arithmetic is in f32.
    """
    b, dtype = call.b, call.dtype
    if op in ("mul", "div", "floordiv") and dtype.is_float and dtype.bits < 32:
        if isinstance(y, Value) and y.type.rank == 0 and y.dtype not in (dtype, types.bool_):
            wide = getattr(b, op)(call.value(x, types.f32), call.value(y, types.f32))
            return b.cast(wide, dtype=dtype)
        if not isinstance(y, Value):
            return getattr(b, op)(call.value(x, dtype), call.parameter(y, dtype))
    left, right = call.value(x, dtype), call.value(y, dtype)
    if alpha != 1:
        right = b.mul(right, call.value(alpha, dtype))
    if dtype == types.bool_:
        op = {"add": "or_", "mul": "and_", "maximum": "or_", "minimum": "and_"}.get(op, op)
    return getattr(b, op)(left, right)


for _op in ("add", "sub"):
    handles(*overloads(_op))(lambda call, x, y, alpha=1, op=_op: binary(call, op, x, y, alpha))
handles(*overloads("rsub"))(lambda call, x, y, alpha=1: binary(call, "sub", y, x, alpha))
for _op, _names in (
    ("mul", overloads("mul", "multiply")),
    ("maximum", ["maximum.default", "max.other"]),
    ("minimum", ["minimum.default", "min.other"]),
    ("floordiv", ["floor_divide.default", "floor_divide.Scalar"]),
):
    handles(*_names, may_fail=_op == "floordiv")(lambda call, x, y, op=_op: binary(call, op, x, y))


@handles(
    *overloads("div", kinds="Tensor Scalar Tensor_mode Scalar_mode"),
    *overloads("true_divide", "divide"),
    may_fail=True,
)
def _div(call: Call, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return binary(call, "div", x, y)
    if rounding_mode == "floor":
        return binary(call, "floordiv", x, y)
    if call.dtype.is_float:
        return call.b.trunc(binary(call, "div", x, y))
    return truncated_div(call.b, call.value(x, call.dtype), call.value(y, call.dtype))


@handles(*overloads("remainder", kinds="Tensor Scalar Scalar_Tensor"), may_fail=True)
def _remainder(call: Call, x: Operand, y: Operand) -> Value:
    left, right = call.value(x, call.dtype), call.value(y, call.dtype)
    rest = call.b.mod(left, right)
    # torch takes C's fmod first, and so keeps its zero
    return with_sign_of_zero(call.b, rest, left) if call.dtype.is_float else rest


@handles(*overloads("fmod"), may_fail=True)
def _fmod(call: Call, x: Operand, y: Operand) -> Value:
    return fmod(call.b, call.value(x, call.dtype), call.value(y, call.dtype))


@handles(*overloads("pow", kinds="Tensor_Scalar Scalar Tensor_Tensor"))
def _pow(call: Call, x: Operand, y: Operand) -> Value:
    b, dtype = call.b, call.dtype
    if isinstance(x, Value) and isinstance(y, int | float):
        base = call.value(x, dtype)
        if y == 0:
            return b.broadcast_to(call.value(1, dtype), shape=base.shape)
        if y == 1:
            return base
        if y in (2, 3):
            square = b.mul(base, base)
            return square if y == 2 else b.mul(square, base)
        if dtype.is_float and y in (0.5, -0.5, -1):
            return {0.5: b.sqrt, -0.5: b.rsqrt, -1: b.reciprocal}[y](base)
    if not dtype.is_float:
        base = call.value(x, dtype)
        if isinstance(y, int) and y > 0:
            return whole_power(b, base, y)
        return integer_power(b, base, call.value(y, dtype))
    return b.pow(call.value(x, dtype), call.value(y, dtype))


@handles("square.default")
def _square(call: Call, x: Value) -> Value:
    return binary(call, "mul", x, x)


# ---- one operand ---------------------------------------------------------------------------

# on integers these give floats, the others keep the dtype
_TO_FLOAT = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"),
    *("sin", "cos", "tanh", "erf", "sigmoid"),
)
_ROUNDING = {"floor", "ceil", "round", "trunc"}


def _unary(op: str) -> Any:
    def apply(call: Call, x: Value) -> Value:
        if op in _ROUNDING and not x.dtype.is_float:
            return x
        return getattr(call.b, op)(call.value(x, call.dtype) if op in _TO_FLOAT else x)

    return apply


for _name in (*_TO_FLOAT, *sorted(_ROUNDING), "neg", "abs", "silu", "relu"):
    handles(f"{_name}.default")(_unary(_name))
handles("absolute.default")(_unary("abs"))
handles("negative.default")(_unary("neg"))
handles("fix.default")(_unary("trunc"))


@handles("tan.default")
def _tan(call: Call, x: Value) -> Value:
    x = call.value(x, call.dtype)
    return call.b.div(call.b.sin(x), call.b.cos(x))


@handles("sign.default", "sgn.default")
def _sign(call: Call, x: Value) -> Value:
    b, zero = call.b, call.value(0)
    down = b.where(b.lt(x, zero), call.value(-1), zero)
    return b.where(b.gt(x, zero), call.value(1), down)


@handles("angle.default")
def _angle(call: Call, x: Value) -> Value:
    x = call.value(x, call.dtype)
    turned = call.b.where(call.b.lt(x, call.value(0)), call.value(math.pi), call.value(0))
    return call.b.where(call.b.isnan(x), x, turned)


@handles("isnan.default")
def _isnan(call: Call, x: Value) -> Value:
    if x.dtype.is_float:
        return call.b.isnan(x)
    return call.b.full(value=False, shape=x.shape, dtype=types.bool_)


@handles("isinf.default")
def _isinf(call: Call, x: Value) -> Value:
    if not x.dtype.is_float:
        return call.b.full(value=False, shape=x.shape, dtype=types.bool_)
    return call.b.eq(call.b.abs(x), call.value(math.inf, x.dtype))


def _present(op: str) -> Any:
    """Fmax and fmin: the other one where one is NaN."""

    def extremum(call: Call, x: Value, y: Value) -> Value:
        b = call.b
        x, y = call.value(x, call.dtype), call.value(y, call.dtype)
        both = getattr(b, op)(x, y)
        if not call.dtype.is_float:
            return both
        return b.where(b.isnan(x), y, b.where(b.isnan(y), x, both))

    return extremum


handles("fmax.default")(_present("maximum"))
handles("fmin.default")(_present("minimum"))


@handles("round.decimals")
def _round_decimals(call: Call, x: Value, *, decimals: int) -> Value:
    if not x.dtype.is_float:
        return x
    # narrow floats in float32 throughout, as torch computes them
    b, wide = call.b, types.f64 if x.dtype == types.f64 else types.f32
    there, back = (b.mul, b.div) if decimals >= 0 else (b.div, b.mul)
    power = call.value(10.0 ** abs(decimals), wide)
    return call.value(back(b.round(there(call.value(x, wide), power)), power), x.dtype)


@handles(
    *("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor"),
    *("clamp_min.default", "clamp_min.Tensor"),
)
def _clamp(call: Call, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    x = call.value(x, call.dtype)
    if min is not None:
        x = call.b.maximum(x, call.value(min, call.dtype))
    if max is not None:
        x = call.b.minimum(x, call.value(max, call.dtype))
    return x


@handles("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(call: Call, x: Value, max: Operand) -> Value:
    return _clamp(call, x, None, max)


# ---- casts, and what only concerns storage -------------------------------------------------


@handles(
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "_to_copy.default",
    "prims.convert_element_type.default",
    "type_as.default",
    "alias.default",
    "clone.default",
    "positive.default",
    "contiguous.default",
    "detach.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
    "lift.default",
    "resolve_conj.default",
    "resolve_neg.default",
)
def _to(call: Call, x: Value, *_: Any, **__: Any) -> Value:
    return call.value(x, call.dtype)


@handles("view.dtype")
def _view_dtype(call: Call, x: Value, dtype: Any) -> Value:
    if call.dtype != x.dtype:
        raise Declined("reading the bits of one dtype as another")
    return x


@handles("dropout.default", "feature_dropout.default", "alpha_dropout.default")
def _dropout(call: Call, x: Value, p: float, train: bool) -> Value:
    if train and p > 0:
        raise Declined("dropout in training mode; call eval() on the module")
    return x


@handles("native_dropout.default")
def _native_dropout(call: Call, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    kept = call.b.full(value=True, shape=x.shape, dtype=types.bool_)
    return _dropout(call, x, p, bool(train)), kept
