"""Elementwise ops: complete with one scalar expression each."""

from collections.abc import Callable

from ..op import broadcast, op
from ..types import DType, TensorType, bool_


def _declare(rule: Callable, **ops: tuple[str, str]) -> None:
    """Ops with one type rule: the scalar and the meaning of each."""
    for name, (scalar, meaning) in ops.items():
        op(rule, name=name, doc=meaning, scalar=scalar)


def _float(x: TensorType) -> TensorType:
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: needs a float dtype; cast it first")
    return x


def _number(x: TensorType) -> TensorType:
    if x.dtype == bool_:
        raise TypeError(f"x is {x}: needs a number dtype; cast it first")
    return x


def _both(x: TensorType, y: TensorType) -> TensorType:
    return broadcast(x, y)


def _numbers(x: TensorType, y: TensorType) -> TensorType:
    return _number(broadcast(x, y))


def _floats(x: TensorType, y: TensorType) -> TensorType:
    return _float(broadcast(x, y))


def _compare(x: TensorType, y: TensorType) -> TensorType:
    return broadcast(x, y).with_dtype(bool_)


def _logical(x: TensorType, y: TensorType) -> TensorType:
    return _bits(broadcast(x, y))


def _bits(x: TensorType) -> TensorType:
    if x.dtype.is_float:
        raise TypeError(f"{x} is a float: needs bool or integers")
    return x


_declare(
    _both,
    add=("x + y", "x + y, with broadcasting."),
    mul=("x * y", "x * y, with broadcasting."),
    minimum=("minimum(x, y)", "The smaller; NaN if either is NaN. With broadcasting."),
    maximum=("maximum(x, y)", "The larger; NaN if either is NaN. With broadcasting."),
)
_declare(
    _numbers,
    sub=("x - y", "x - y, with broadcasting."),
    floordiv=("x // y", "The quotient rounded towards minus infinity, with broadcasting."),
    mod=("x % y", "x - y * floor(x / y): the sign of y, with broadcasting."),
)
_declare(
    _floats,
    div=("x / y", "x / y for floats, with broadcasting."),
    pow=("pow(x, y)", "x to the power y, for floats, with broadcasting."),
)
_declare(
    _number,
    neg=("-x", "-x."),
    abs=("abs(x)", "The magnitude of x."),
    relu=("maximum(x, 0)", "max(x, 0)."),
)
_declare(
    _float,
    exp=("exp(x)", "e to the power x."),
    exp2=("exp2(x)", "2 to the power x, exact for whole x."),
    expm1=("expm1(x)", "e to the power x, less 1, accurate near 0."),
    log=("log(x)", "Natural logarithm."),
    log2=("log2(x)", "Logarithm to base 2, exact for powers of 2."),
    log10=("log10(x)", "Logarithm to base 10, exact for powers of 10."),
    log1p=("log1p(x)", "Natural logarithm of 1 + x, accurate near 0."),
    sqrt=("sqrt(x)", "Square root."),
    rsqrt=("rsqrt(x)", "1 / sqrt(x)."),
    reciprocal=("1 / x", "1 / x."),
    sin=("sin(x)", "Sine; x in radians."),
    cos=("cos(x)", "Cosine; x in radians."),
    tanh=("tanh(x)", "Hyperbolic tangent."),
    erf=("erf(x)", "Error function."),
    sigmoid=("sigmoid(x)", "1 / (1 + exp(-x))."),
    floor=("floor(x)", "Round towards minus infinity."),
    ceil=("ceil(x)", "Round towards plus infinity."),
    round=("round(x)", "Round to nearest, half to even."),
    trunc=("trunc(x)", "Round towards zero."),
    silu=(
        "x * sigmoid(x)",
        'x * sigmoid(x). Elfwing et al., "Sigmoid-weighted linear units", 2017.',
    ),
    gelu=(
        "0.5 * x * (1 + erf(x * 0.7071067811865476))",
        "x * Phi(x), Phi the normal distribution. Hendrycks and Gimpel, 2016.",
    ),
    gelu_tanh=(
        "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
        "The tanh approximation of gelu (same paper).",
    ),
)
_declare(
    _compare,
    eq=("x == y", "x == y as bool."),
    ne=("x != y", "x != y as bool."),
    lt=("x < y", "x < y as bool."),
    le=("x <= y", "x <= y as bool."),
    gt=("x > y", "x > y as bool."),
    ge=("x >= y", "x >= y as bool."),
)
_declare(
    _logical,
    and_=("x & y", "Bitwise (bool: logical) and."),
    or_=("x | y", "Bitwise (bool: logical) or."),
    xor=("x ^ y", "Bitwise (bool: logical) exclusive or."),
)


@op(scalar="~x")
def not_(x):
    """Bitwise (bool: logical) not."""
    return _bits(x)


@op(scalar="isnan(x)")
def isnan(x):
    """True where x is NaN."""
    return _float(x).with_dtype(bool_)


@op(scalar="where(condition, x, y)")
def where(condition, x, y):
    """x where condition holds, else y; all three broadcast."""
    if condition.dtype != bool_:
        raise TypeError(f"condition is {condition}: must be bool")
    result = broadcast(x, y)
    return broadcast(condition, result.with_dtype(bool_)).with_dtype(result.dtype)


@op(scalar="x")
def cast(x, *, dtype: DType):
    """x converted to dtype: floats round to nearest even, float to integer truncates."""
    return x.with_dtype(dtype)
