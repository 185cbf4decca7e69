"""Elementwise ops: complete with one scalar expression each."""

from ..op import broadcast, op
from ..types import DType, TensorType, bool_


def _float(x: TensorType) -> TensorType:
    if not x.dtype.is_float:
        raise TypeError(f"x is {x}: needs a float dtype; cast it first")
    return x


def _number(x: TensorType) -> TensorType:
    if x.dtype == bool_:
        raise TypeError(f"x is {x}: needs a number dtype; cast it first")
    return x


def _compare(x: TensorType, y: TensorType) -> TensorType:
    return broadcast(x, y).with_dtype(bool_)


def _logical(*types: TensorType) -> TensorType:
    result = broadcast(*types)
    if result.dtype.is_float:
        raise TypeError(f"{result} is a float: needs bool or integers")
    return result


@op(scalar="x + y")
def add(x, y):
    """x + y, with broadcasting."""
    return broadcast(x, y)


@op(scalar="x - y")
def sub(x, y):
    """x - y, with broadcasting."""
    return _number(broadcast(x, y))


@op(scalar="x * y")
def mul(x, y):
    """x * y, with broadcasting."""
    return broadcast(x, y)


@op(scalar="x / y")
def div(x, y):
    """x / y for floats, with broadcasting."""
    return _float(broadcast(x, y))


@op(scalar="x // y")
def floordiv(x, y):
    """The quotient rounded towards minus infinity, with broadcasting."""
    return _number(broadcast(x, y))


@op(scalar="x % y")
def mod(x, y):
    """x - y * floor(x / y): the sign of y, with broadcasting."""
    return _number(broadcast(x, y))


@op(scalar="pow(x, y)")
def pow(x, y):
    """x to the power y, for floats, with broadcasting."""
    return _float(broadcast(x, y))


@op(scalar="minimum(x, y)")
def minimum(x, y):
    """The smaller; NaN if either is NaN. With broadcasting."""
    return broadcast(x, y)


@op(scalar="maximum(x, y)")
def maximum(x, y):
    """The larger; NaN if either is NaN. With broadcasting."""
    return broadcast(x, y)


@op(scalar="-x")
def neg(x):
    """-x."""
    return _number(x)


@op(scalar="abs(x)")
def abs(x):
    """The magnitude of x."""
    return _number(x)


@op(scalar="exp(x)")
def exp(x):
    """e to the power x."""
    return _float(x)


@op(scalar="exp2(x)")
def exp2(x):
    """2 to the power x, exact for whole x."""
    return _float(x)


@op(scalar="expm1(x)")
def expm1(x):
    """e to the power x, less 1, accurate near 0."""
    return _float(x)


@op(scalar="log(x)")
def log(x):
    """Natural logarithm."""
    return _float(x)


@op(scalar="log2(x)")
def log2(x):
    """Logarithm to base 2, exact for powers of 2."""
    return _float(x)


@op(scalar="log10(x)")
def log10(x):
    """Logarithm to base 10, exact for powers of 10."""
    return _float(x)


@op(scalar="log1p(x)")
def log1p(x):
    """Natural logarithm of 1 + x, accurate near 0."""
    return _float(x)


@op(scalar="sqrt(x)")
def sqrt(x):
    """Square root."""
    return _float(x)


@op(scalar="rsqrt(x)")
def rsqrt(x):
    """1 / sqrt(x)."""
    return _float(x)


@op(scalar="1 / x")
def reciprocal(x):
    """1 / x."""
    return _float(x)


@op(scalar="sin(x)")
def sin(x):
    """Sine; x in radians."""
    return _float(x)


@op(scalar="cos(x)")
def cos(x):
    """Cosine; x in radians."""
    return _float(x)


@op(scalar="tanh(x)")
def tanh(x):
    """Hyperbolic tangent."""
    return _float(x)


@op(scalar="erf(x)")
def erf(x):
    """Error function."""
    return _float(x)


@op(scalar="sigmoid(x)")
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return _float(x)


@op(scalar="floor(x)")
def floor(x):
    """Round towards minus infinity."""
    return _float(x)


@op(scalar="ceil(x)")
def ceil(x):
    """Round towards plus infinity."""
    return _float(x)


@op(scalar="round(x)")
def round(x):
    """Round to nearest, half to even."""
    return _float(x)


@op(scalar="trunc(x)")
def trunc(x):
    """Round towards zero."""
    return _float(x)


@op(scalar="maximum(x, 0)")
def relu(x):
    """max(x, 0)."""
    return _number(x)


@op(scalar="x * sigmoid(x)")
def silu(x):
    """x * sigmoid(x). Elfwing et al., "Sigmoid-weighted linear units", 2017."""
    return _float(x)


@op(scalar="0.5 * x * (1 + erf(x * 0.7071067811865476))")
def gelu(x):
    """x * Phi(x), Phi the normal distribution. Hendrycks and Gimpel, 2016."""
    return _float(x)


@op(scalar="0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))")
def gelu_tanh(x):
    """The tanh approximation of gelu (same paper)."""
    return _float(x)


@op(scalar="x == y")
def eq(x, y):
    """x == y as bool."""
    return _compare(x, y)


@op(scalar="x != y")
def ne(x, y):
    """x != y as bool."""
    return _compare(x, y)


@op(scalar="x < y")
def lt(x, y):
    """x < y as bool."""
    return _compare(x, y)


@op(scalar="x <= y")
def le(x, y):
    """x <= y as bool."""
    return _compare(x, y)


@op(scalar="x > y")
def gt(x, y):
    """x > y as bool."""
    return _compare(x, y)


@op(scalar="x >= y")
def ge(x, y):
    """x >= y as bool."""
    return _compare(x, y)


@op(scalar="x & y")
def and_(x, y):
    """Bitwise (bool: logical) and."""
    return _logical(x, y)


@op(scalar="x | y")
def or_(x, y):
    """Bitwise (bool: logical) or."""
    return _logical(x, y)


@op(scalar="x ^ y")
def xor(x, y):
    """Bitwise (bool: logical) exclusive or."""
    return _logical(x, y)


@op(scalar="~x")
def not_(x):
    """Bitwise (bool: logical) not."""
    return _logical(x)


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
