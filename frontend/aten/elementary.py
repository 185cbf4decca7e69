"""Elementary and special functions that are formulas of others."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ...ir.graph import Value
from ..importer import Call, Declined, handles
from ..nn import elementary, special
from ..nn.elementary import is_negative
from ..nn.formula import computed
from ..nn.polynomials import chebyshev
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
    "special_spherical_bessel_j0.default": "spherical_j0",
}  # fmt: skip
for _name, _function in _SPECIAL.items():
    handles(_name)(_of(special.special, _function))


@handles("polygamma.default")
def _polygamma(call: Call, order: int, x: Value) -> Value:
    if order != 0:
        raise Declined(f"the polygamma function of order {order}")
    return special.special(call.b, "digamma", call.value(x, call.dtype))


def _chebyshev(call: Call, x: Operand, n: Operand, *, kind: str, shifted: bool) -> Value:
    x, n = call.value(x, call.dtype), call.value(n, call.dtype)
    return chebyshev(call.b, kind, x, n, shifted=shifted)


for _kind in "tuvw":
    for _prefix, _shifted in (("", False), ("shifted_", True)):
        _name = f"special_{_prefix}chebyshev_polynomial_{_kind}"
        handles(*(f"{_name}.{form}" for form in ("default", "x_scalar", "n_scalar")))(
            partial(_chebyshev, kind=_kind, shifted=_shifted)
        )


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
