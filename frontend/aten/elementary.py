"""Elementary and special functions that are formulas of others."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ...ir import types
from ...ir.builder import Builder
from ...ir.graph import Value
from ..importer import Call, Declined, handles
from ..nn import elementary, special
from ..nn.elementary import is_negative
from ..nn.formula import Term, computed
from ..nn.polynomials import chebyshev, recurrent
from ..nn.scan import repeated
from .pointwise import Operand


def _of(function: Callable[..., Value], name: str) -> Any:
    def apply(call: Call, *operands: Operand) -> Value:
        return function(call.b, name, *(call.value(x, call.dtype) for x in operands))

    return apply


for _name in elementary.FUNCTIONS:
    handles(f"{_name}.default")(_of(elementary.elementary, _name))

_SPECIAL = {
    "erfc.default": "erfc", "special_erfcx.default": "erfcx", "erfinv.default": "erfinv",
    "lgamma.default": "lgamma", "digamma.default": "digamma", "i0.default": "i0",
    "special_i0e.default": "i0e", "special_i1.default": "i1", "special_i1e.default": "i1e",
    "special_modified_bessel_i0.default": "i0", "special_modified_bessel_i1.default": "i1",
    "special_modified_bessel_k0.default": "k0", "special_modified_bessel_k1.default": "k1",
    "special_scaled_modified_bessel_k0.default": "k0e",
    "special_scaled_modified_bessel_k1.default": "k1e",
    "special_spherical_bessel_j0.default": "spherical_j0", "special_ndtri.default": "ndtri",
    "special_bessel_j0.default": "j0", "special_bessel_j1.default": "j1",
    "special_bessel_y0.default": "y0", "special_bessel_y1.default": "y1",
}  # fmt: skip
for _name, _function in _SPECIAL.items():
    handles(_name)(_of(special.special, _function))


@handles("polygamma.default")
def _polygamma(call: Call, order: int, x: Value) -> Value:
    return special.polygamma(call.b, order, call.value(x, call.dtype))


@handles("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def _zeta(call: Call, s: Operand, q: Operand) -> Value:
    return special.zeta(call.b, call.value(s, call.dtype), call.value(q, call.dtype))


def _chebyshev(call: Call, x: Operand, n: Operand, *, kind: str, shifted: bool) -> Value:
    x, n = call.value(x, call.dtype), call.value(n, call.dtype)
    return chebyshev(call.b, kind, x, n, shifted=shifted)


def _recurrent(call: Call, x: Operand, n: Operand, *, name: str) -> Value:
    return recurrent(call.b, name, call.value(x, call.dtype), call.value(n, call.dtype))


def _polynomial(family: str, kind: str, handler: Any) -> None:
    name = f"special_{family}_polynomial_{kind}"
    handles(*(f"{name}.{form}" for form in ("default", "x_scalar", "n_scalar")))(handler)


for _kind in "tuvw":
    for _family, _shifted in (("chebyshev", False), ("shifted_chebyshev", True)):
        _polynomial(_family, _kind, partial(_chebyshev, kind=_kind, shifted=_shifted))
for _name in ("hermite_h", "hermite_he", "laguerre_l", "legendre_p"):
    _polynomial(*_name.split("_"), partial(_recurrent, name=_name))


@handles("copysign.Tensor", "copysign.Scalar")
def _copysign(call: Call, x: Value, sign: Operand) -> Value:
    x, sign = call.value(x, call.dtype), call.value(sign, call.dtype)
    size = call.b.abs(x)
    return call.b.where(computed(call.b, is_negative, (sign,), x.dtype), call.b.neg(size), size)


@handles("signbit.default")
def _signbit(call: Call, x: Value) -> Value:
    if x.dtype.is_float:
        return computed(call.b, is_negative, (x,), x.dtype)
    return call.b.lt(x, call.value(0, x.dtype))


@handles("frexp.Tensor")
def _frexp(call: Call, x: Value) -> tuple[Value, Value]:
    """X as a fraction in [1/2, 1) times a power of 2, and that power."""
    b, wide = call.b, types.f64
    if x.dtype == wide:
        raise Declined("the exponent of a float64")  # its subnormal numbers would need a wider one
    number = Term(b, call.value(x, wide), wide)
    size = abs(number)
    is_plain = (size > 0.0) & (size < math.inf)
    power = is_plain.where(size, 1.0).log2().floor() + 1.0
    fraction = size * (-power).exp2()  # the logarithm may have been rounded over a power of 2
    power = power + (fraction >= 1.0).where(1.0, (fraction < 0.5).where(-1.0, 0.0))
    power = is_plain.where(power, 0.0)
    fraction = number * (-power).exp2()
    return call.value(fraction.value, x.dtype), call.value(power.value, types.i32)


def _greatest_divisor(call: Call, x: Value, y: Value) -> Value:
    """Euclid's algorithm for all elements together, until the last is done."""
    b, dtype = call.b, call.dtype
    sizes = [b.abs(call.broadcast(call.value(v, dtype), call.shape)) for v in (x, y)]
    flat = [call.reshape(v, (v.type.numel,)) for v in sizes]

    def goes_on(inner: Builder, x: Value, y: Value) -> tuple[Value]:
        return (inner.any(inner.ne(y, inner.constant(0, dtype)), axes=(0,)),)

    def step(inner: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        zero = inner.constant(0, dtype)
        more = inner.ne(y, zero)
        rest = inner.mod(x, inner.where(more, y, inner.constant(1, dtype)))
        return inner.where(more, y, x), inner.where(more, rest, y)

    return call.reshape(repeated(b, goes_on, step, flat)[0], call.shape)


handles("gcd.default")(_greatest_divisor)


@handles("lcm.default")
def _least_multiple(call: Call, x: Value, y: Value) -> Value:
    b, divisor = call.b, _greatest_divisor(call, x, y)
    x, y, zero = call.value(x, call.dtype), call.value(y, call.dtype), call.value(0)
    safe = b.where(b.eq(divisor, zero), call.value(1), divisor)
    return b.abs(b.mul(b.floordiv(x, safe), y))
