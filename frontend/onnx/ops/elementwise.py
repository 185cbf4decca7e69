"""Elementwise operators: arithmetic, comparisons, logic, activations, casts."""

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import ml_dtypes
import numpy as np

from ....ir import types
from ....ir.graph import Value
from ....ir.types import DType
from ...nn import division
from ...nn.elementary import elementary
from ...nn.formula import Term, computed
from ...nn.shift import shift
from ..formats import E8M0, is_coded, power_of_two
from ..known import Known
from ..operators import Call, Declined, onnx_op
from ..tensors import dtype_of_element


def aligned(call: Call, x: Value, y: Value, broadcast: bool, axis: int | None) -> Value:
    """Y as opset 6 broadcasts it: its axes lie along those of x from `axis` on."""
    if not broadcast or axis is None or y.type.rank == 0:
        return y
    first = call.axis(axis, x)
    ones = x.type.rank - first - y.type.rank
    return call.reshape(y, (*y.shape, *(1,) * ones))


def _binary(name: str, function: Callable[[Call, Value, Value], Value]) -> None:
    """A row for operands that broadcast as NumPy has it, and one for opset 6."""

    @onnx_op(name, since=7)
    def _(call: Call, x: Value, y: Value) -> Value:
        return function(call, x, y)

    @onnx_op(name, since=1)
    def _(
        call: Call, x: Value, y: Value, *, broadcast: bool = False, axis: int | None = None
    ) -> Value:
        return function(call, x, aligned(call, x, y, broadcast, axis))


def _op(name: str) -> Callable[[Call, Value, Value], Value]:
    return lambda call, x, y: getattr(call.b, name)(x, y)


def _div(call: Call, x: Value, y: Value) -> Value:
    """The quotient; of integers rounded towards zero."""
    return call.b.div(x, y) if x.dtype.is_float else division.truncated_div(call.b, x, y)


def _pow(call: Call, x: Value, y: Value) -> Value:
    """x to the power y, in the dtype of x."""
    b, dtype = call.b, x.dtype
    exponent = call.constant(y) if call.is_known(y) else None
    if exponent is not None and exponent.size == 1:
        number = exponent.reshape(-1)[0].item()
        shape = np.broadcast_shapes((1,) * x.type.rank, exponent.shape)
        if len(shape) == x.type.rank:
            if number in (1, 2, 3):
                return x if number == 1 else b.mul(x, x) if number == 2 else b.mul(b.mul(x, x), x)
            if dtype.is_float and number in (0.5, -0.5, -1):
                return {0.5: b.sqrt, -0.5: b.rsqrt, -1: b.reciprocal}[number](x)
    if dtype.is_float:
        return b.pow(x, call.cast(y, dtype))
    # whole powers are exact in float64 as far as they fit
    wide = b.pow(b.cast(x, dtype=types.f64), b.cast(y, dtype=types.f64))
    return b.cast(wide, dtype=dtype)


for _name, _function in {
    **{name: _op(name.lower()) for name in ("Add", "Sub", "Mul")},
    "Div": _div,
    "Pow": _pow,
    "And": _op("and_"),
    "Or": _op("or_"),
    "Xor": _op("xor"),
    "Equal": _op("eq"),
    "Less": _op("lt"),
    "Greater": _op("gt"),
}.items():
    _binary(_name, _function)

for _name, _function in {
    "LessOrEqual": _op("le"),
    "GreaterOrEqual": _op("ge"),
    "BitwiseAnd": _op("and_"),
    "BitwiseOr": _op("or_"),
    "BitwiseXor": _op("xor"),
}.items():
    onnx_op(_name)(lambda call, x, y, function=_function: function(call, x, y))


@onnx_op("Mod", since=10)
def _mod(call: Call, x: Value, y: Value, *, fmod: bool = False) -> Value:
    return division.fmod(call.b, x, y) if fmod else call.b.mod(x, y)


@onnx_op("BitShift")
def _bit_shift(call: Call, x: Value, y: Value, *, direction: str) -> Value:
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"direction {direction!r}")
    return shift(call.b, x, y, is_left=direction == "LEFT")


def _variadic(name: str, op: str) -> None:
    @onnx_op(name)
    def _(call: Call, *xs: Value) -> Value:
        return reduce(getattr(call.b, op), xs)


for _name, _text in (("Max", "maximum"), ("Min", "minimum"), ("Sum", "add")):
    _variadic(_name, _text)


@onnx_op("Mean")
def _mean(call: Call, *xs: Value) -> Value:
    total = reduce(call.b.add, xs)
    return call.b.div(total, call.number(len(xs), total.dtype))


# ---- one operand ---------------------------------------------------------------------------

for _name, _text in {
    **{
        n: n.lower()
        for n in "Neg Abs Exp Log Sqrt Reciprocal Sin Cos Tanh Erf Sigmoid Relu".split()
    },
    **{n: n.lower() for n in "Floor Ceil Round IsNaN".split()},
    "Not": "not_",
    "BitwiseNot": "not_",
}.items():
    onnx_op(_name)(lambda call, x, op=_text: getattr(call.b, op)(x))


@onnx_op("Identity")
def _identity(call: Call, x: Any) -> Any:
    return x


@onnx_op("Sign")
def _sign(call: Call, x: Value) -> Value:
    b, zero = call.b, call.number(0, x.dtype)
    if x.dtype.kind == "uint":
        return b.where(b.gt(x, zero), call.number(1, x.dtype), zero)
    down = b.where(b.lt(x, zero), call.number(-1, x.dtype), zero)
    return b.where(b.gt(x, zero), call.number(1, x.dtype), down)


@onnx_op("IsInf")
def _isinf(
    call: Call, x: Value, *, detect_negative: bool = True, detect_positive: bool = True
) -> Value:
    b, infinity = call.b, call.number(math.inf, x.dtype)
    if detect_negative and detect_positive:
        return b.eq(b.abs(x), infinity)
    if not detect_negative and not detect_positive:
        return b.full(value=False, shape=x.shape, dtype=types.bool_)
    return b.eq(x, infinity if detect_positive else call.number(-math.inf, x.dtype))


@onnx_op("Tan")
def _tan(call: Call, x: Value) -> Value:
    return call.b.div(call.b.sin(x), call.b.cos(x))


def _hard_sigmoid(x: Term, alpha: float, beta: float) -> Term:
    return (x * alpha + beta).maximum(0.0).minimum(1.0)


def _elu(x: Term, alpha: float) -> Term:
    return (x < 0.0).where(x.expm1() * alpha, x)


def softplus(x: Term) -> Term:
    """log(1 + exp(x)), without overflow."""
    return x.relu() + (-abs(x)).exp().log1p()


def _shrink(x: Term, bias: float, lambd: float) -> Term:
    inside = (x < -lambd).where(x + bias, 0.0)
    return (x > lambd).where(x - bias, inside)


# formulas of x and of attributes, with these in ONNX's defaults; narrow floats in f32
FORMULAS: dict[str, tuple[Callable[..., Term], dict[str, float]]] = {
    "LeakyRelu": (lambda x, alpha: (x < 0.0).where(x * alpha, x), {"alpha": 0.01}),
    "Elu": (_elu, {"alpha": 1.0}),
    "Selu": (
        lambda x, alpha, gamma: _elu(x, alpha) * gamma,
        {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    ),
    "Celu": (lambda x, alpha: (x < 0.0).where((x / alpha).expm1() * alpha, x), {"alpha": 1.0}),
    "HardSigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": (lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), {}),
    "Softplus": (softplus, {}),
    "Softsign": (lambda x: x / (abs(x) + 1.0), {}),
    "ThresholdedRelu": (lambda x, alpha: (x > alpha).where(x, 0.0), {"alpha": 1.0}),
    "Mish": (lambda x: x * softplus(x).tanh(), {}),
    "Swish": (lambda x, alpha: x * (x * alpha).sigmoid(), {"alpha": 1.0}),
    "Shrink": (_shrink, {"bias": 0.0, "lambd": 0.5}),
}


def formula(name: str, call: Call, x: Value, **given: float) -> Value:
    """The operator `name` of FORMULAS; attributes that are not given are ONNX's."""
    rule, defaults = FORMULAS[name]
    numbers = {**defaults, **given}
    return computed(call.b, lambda n: rule(n, **numbers), [x], types.f32)


for _name, (_, _defaults) in FORMULAS.items():
    onnx_op(_name, attributes=_defaults)(partial(formula, _name))

for _text in "asin acos atan sinh cosh asinh acosh atanh".split():
    onnx_op(_text.capitalize())(lambda call, x, name=_text: elementary(call.b, name, x))


@onnx_op("Gelu")
def _gelu(call: Call, x: Value, *, approximate: str = "none") -> Value:
    return call.b.gelu_tanh(x) if approximate == "tanh" else call.b.gelu(x)


@onnx_op("PRelu")
def _prelu(call: Call, x: Value, slope: Value) -> Value:
    if call.version < 7 and slope.type.rank == 1 and x.type.rank > 1:
        slope = aligned(call, x, slope, 1, 1)  # one for each channel
    return call.b.where(call.b.lt(x, call.number(0, x.dtype)), call.b.mul(x, slope), x)


@onnx_op("Clip", since=11)
def _clip(call: Call, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    if low is not None:
        x = call.b.maximum(x, low)
    return x if high is None else call.b.minimum(x, high)


@onnx_op("Clip")
def _clip_6(
    call: Call, x: Value, *, min: float | None = None, max: float | None = None, **_: Any
) -> Value:
    low, high = (None if v is None else call.number(v, x.dtype) for v in (min, max))
    return _clip(call, x, low, high)


@onnx_op("Where")
def _where(call: Call, condition: Value, x: Value, y: Value) -> Value:
    return call.b.where(condition, x, y)


@onnx_op("Dropout", since=12)
def _dropout(
    call: Call,
    x: Value,
    ratio: Value | None = None,
    training: Value | None = None,
    *,
    seed: int = 0,
) -> tuple[Value, Value]:
    if training is not None and bool(call.constant(training).item()):
        share = 0.5 if ratio is None else float(call.constant(ratio).item())
        if share > 0:
            raise Declined("dropout in training mode")
    return x, call.b.full(value=True, shape=x.shape, dtype=types.bool_)


@onnx_op("Dropout")
def _dropout_7(
    call: Call, x: Value, *, ratio: float = 0.5, is_test: bool = True
) -> tuple[Value, ...]:
    if not is_test and ratio > 0:
        raise Declined("dropout in training mode")
    dtype = types.bool_ if call.version >= 10 else x.dtype
    return x, call.b.full(value=dtype.element(1), shape=x.shape, dtype=dtype)


# ---- casts ---------------------------------------------------------------------------------


def converted(
    call: Call, x: Value, dtype: DType, saturate: bool = True, round_mode: str = "up"
) -> Value:
    """X in another dtype, as Cast has it.

    To a float8, what is too large becomes the largest with `saturate` (infinity too); else
    infinity, or NaN where the dtype has none (ONNX, "Float stored in 8 bits").
    """
    if is_coded(x.dtype):
        x = call.b.cast(x, dtype=types.f32)
    if dtype is types.bool_ and x.dtype is not types.bool_:
        return call.b.ne(x, call.number(0, x.dtype))
    if not (dtype.is_float and dtype.bits <= 8) or x.dtype == dtype:
        return call.cast(x, dtype)
    b, wide = call.b, call.computed(call.cast(x, types.f32) if not x.dtype.is_float else x)
    largest = float(ml_dtypes.finfo(dtype.numpy).max)
    if dtype == E8M0:
        single = call.cast(wide, types.f32)
        power = power_of_two(b, single, round_mode, saturate, Known.of_array)
        return b.cast(power, dtype=dtype)
    if saturate or dtype.bits < 8:
        top = call.number(largest, wide.dtype)
        return b.cast(b.minimum(b.maximum(wide, b.neg(top)), top), dtype=dtype)
    narrow = b.cast(wide, dtype=dtype)
    if dtype is types.f8e5m2:
        return narrow
    # past the middle between the largest and what would come next
    before = np.nextafter(np.array(largest, dtype.numpy), np.array(0.0, dtype.numpy))
    past = b.gt(b.abs(wide), call.number(largest + (largest - float(before)) / 2, wide.dtype))
    return b.cast(b.where(past, call.number(math.nan, wide.dtype), wide), dtype=dtype)


@onnx_op("Cast")
def _cast(call: Call, x: Value, *, to: int, saturate: bool = True, round_mode: str = "up") -> Value:
    return converted(call, x, dtype_of_element(to), saturate, round_mode)


@onnx_op("CastLike")
def _cast_like(
    call: Call, x: Value, like: Value, *, saturate: bool = True, round_mode: str = "up"
) -> Value:
    return converted(call, x, like.dtype, saturate, round_mode)


# ---- constants -----------------------------------------------------------------------------


@onnx_op("Constant")
def _constant(
    call: Call,
    *,
    value: Known | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
) -> Known:
    if value is not None:
        return value
    for number, dtype in (
        (value_float, np.float32),
        (value_floats, np.float32),
        (value_int, np.int64),
        (value_ints, np.int64),
    ):
        if number is not None:
            return Known.of_array(np.array(number, dtype))
    raise Declined("it has no value that is read")
