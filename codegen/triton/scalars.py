"""Functions of the scalar language in Triton: name -> text of an expression.

What Triton has no portable function for is composed here, so that the same source runs on NVIDIA
and AMD GPUs and under Triton's interpreter. Errors are stated for float32.

Triton's `/` and `sqrt` are approximations in float32 (2 units in the last place). The module's own
divisions and square roots round correctly, as eager's do; `/` stands only inside functions that are
approximations themselves.
"""

from collections.abc import Callable

from ...ir.types import DType, f32, f64
from .names import value_type

# Helpers that every emitted module starts with; @triton.jit functions are inlined where used.
_PRELUDE = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def fmod(a, b):
    # the exact remainder, which the compiler's own % is not
    return libdevice.fmod(a, b)


@triton.jit
def divided(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def mod_floats(a, b):
    r = fmod(a, b)
    return tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), r + b, r)


@triton.jit
def floordiv_floats(a, b):
    # from the exact remainder: a / b rounded may be a whole number that the exact ratio is below
    r = fmod(a, b)
    ratio = divided(a, b)
    q = divided(a - r, b)
    q = round_even(q, 12582912.0 if a.dtype == tl.float32 else 6755399441055744.0)
    q = tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), q - 1.0, q)
    return tl.where(b == 0.0, ratio, tl.where(q == 0.0, 0.0 * ratio, q))


@triton.jit
def floordiv_down(a, b):
    q = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def mod_down(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def round_even(x, magic: tl.constexpr):
    # adding 1.5 * 2^(mantissa bits) leaves no room for a fraction: the hardware rounds to even
    return tl.where(tl.abs(x) < magic * 0.25, (x + magic) - magic, x)


@triton.jit
def tanh(x):
    # (1 - e) / (1 + e) with e = exp(-2|x|) loses digits near 0: a series there. Relative error 4e-7
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.3333333333333333 + s * (0.13333333333333333 + s * (
        -0.05396825396825397 + s * 0.021869488536155203))))
    return tl.where(s < 0.04, near, tl.where(x < 0, -far, far))


@triton.jit
def erf_single(x):
    # x P(x^2) / Q(x^2), of which the quotient is within 2e-8 of erf(x) / x up to 3.92, where erf
    # rounds to 1. Relative error 4e-7, without the choice of coefficients that libdevice makes
    s = tl.minimum(x * x, 15.36)
    p = tl.fma(s, 2.0507286535575986e-06, 0.0002848899457603693)
    p = tl.fma(s, p, 0.0037645527627319098)
    p = tl.fma(s, p, 0.052745573222637177)
    p = tl.fma(s, p, 0.19037756323814392)
    p = tl.fma(s, p, 1.1283791065216064)
    q = tl.fma(s, 3.8098707591416314e-05, 0.0011623346945270896)
    q = tl.fma(s, q, 0.014967071823775768)
    q = tl.fma(s, q, 0.11409777402877808)
    q = tl.fma(s, q, 0.5020504593849182)
    q = tl.fma(s, q, 1.0)
    ratio = libdevice.fast_dividef(tl.abs(x) * p, q)
    size = tl.minimum(ratio, 1.0, propagate_nan=tl.PropagateNan.ALL)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (size.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def divisor_scale(d):
    # a power of two that brings d to where its reciprocal is a normal number
    size = tl.abs(d)
    return tl.where(size < 2.0**-100, 2.0**64, tl.where(size > 2.0**100, 2.0**-64, 1.0))


@triton.jit
def shared_quotient(x, d, reciprocal):
    # x / d: the product with 1 / d, rounded, corrected by its remainder. Markstein, "Computation of
    # elementary functions on the IBM RISC System/6000", 1990, theorem 3. Where there is no finite
    # remainder, the product is right
    q = x * reciprocal
    rest = tl.fma(-q, d, x)
    is_off = (rest != 0.0) & (tl.abs(rest) < 3e38)
    return tl.where(is_off, tl.fma(rest, reciprocal, q), q)


@triton.jit
def log1p(x):
    # Kahan: the rounding error of 1 + x divides out
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.where(u > 1e30, tl.log(u), tl.log(u) * (x / (u - 1.0))))


@triton.jit
def log10(x):
    # through float64, so that powers of 10 come out exact
    return (tl.log2(x.to(tl.float64)) * 0.3010299956639812).to(x.dtype)


@triton.jit
def expm1(x):
    u = tl.exp(x)
    near = (u - 1.0) * (x / tl.log(u))
    return tl.where(u == 1.0, x, tl.where((u < 1e-4) | (u > 1e30), u - 1.0, near))


@triton.jit
def power(x, y):
    # through float64, so that the error of y * log2(x) stays below float32's
    base, exponent = x.to(tl.float64), y.to(tl.float64)
    size = tl.exp2(exponent * tl.log2(tl.abs(base)))
    is_whole = tl.floor(exponent) == exponent
    is_odd = is_whole & (tl.floor(exponent * 0.5) * 2.0 != exponent)
    signed = tl.where(is_odd, -size, size)
    result = tl.where(base < 0, tl.where(is_whole, signed, float("nan")), size)
    return tl.where(exponent == 0.0, 1.0, tl.where(base == 1.0, 1.0, result)).to(x.dtype)


"""

# Helpers of kernels with a Check (codegen/loops.py). Lanes that find the same fault write alike, or
# one of them wins: any fault will do. `wide` gives all that is stored the shape of the mask.
CHECKS = """

@triton.jit
def wrapped(x, size, wraps: tl.constexpr):
    at = x.to(tl.int64)
    return tl.where(at < 0, at + size, at) if wraps else at


@triton.jit
def checked_index(x, size, wraps: tl.constexpr):
    at = wrapped(x, size, wraps)
    return tl.where((at < 0) | (at >= size), 0, at).to(x.dtype)


@triton.jit
def record_index(x, size, inside, record, wraps: tl.constexpr):
    at = wrapped(x, size, wraps)
    fault = ((at < 0) | (at >= size)) & inside
    wide = tl.zeros(fault.shape, tl.int64)
    tl.store(record + 1 + wide, wide + x, mask=fault)
    tl.store(record + wide, wide + size + 1, mask=fault)


@triton.jit
def checked_divisor(x):
    return tl.where(x == 0, 1, x).to(x.dtype)


@triton.jit
def record_divisor(x, inside, record):
    fault = (x == 0) & inside
    wide = tl.zeros(fault.shape, tl.int64)
    tl.store(record + wide, wide + 1, mask=fault)
"""


def prelude(interpret: bool) -> str:
    """The helpers. Triton's interpreter has no libdevice, and its own `%` is exact."""
    if not interpret:
        return _PRELUDE
    plain = _PRELUDE.replace("libdevice.fmod(a, b)", "a % b")
    return plain.replace("libdevice.fast_dividef(tl.abs(x) * p, q)", "tl.abs(x) * p / q")


def _infix(operator: str) -> Callable[..., str]:
    return lambda dtype, a, b: f"{a} {operator} {b}"


def _call(name: str) -> Callable[..., str]:
    return lambda dtype, *args: f"{name}({', '.join(args)})"


def _by_kind(name: str) -> Callable[..., str]:
    """What rounds down: a function of floats and one of integers, of which none divides bytes.

    GPUs divide 32 bits at least; a division of bytes by 7 was off by 1 on an H200, by its compiler.
    """

    def text(dtype: DType, a: str, b: str) -> str:
        if dtype.is_float or dtype.bits >= 32:
            return f"{name}_{'floats' if dtype.is_float else 'down'}({a}, {b})"
        wide = f"{name}_down({a}.to(tl.int32), {b}.to(tl.int32))"
        return f"{wide}.to({value_type(dtype)})"

    return text


def _extremum(name: str) -> Callable[..., str]:
    def text(dtype: DType, a: str, b: str) -> str:
        nan = ", propagate_nan=tl.PropagateNan.ALL" if dtype.is_float else ""
        return f"tl.{name}({a}, {b}{nan})"

    return text


def _round(dtype: DType, x: str) -> str:
    magic = 1.5 * 2.0 ** (52 if dtype == f64 else 23)
    return f"round_even({x}, {magic!r})"


_OPERATORS = {
    "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&", "or": "|", "xor": "^", "shift_right": ">>",
}  # fmt: skip
_OF_TRITON = "where abs exp exp2 log log2 rsqrt sin cos floor ceil".split()
_OWN = "log10 log1p expm1 tanh".split()  # of the prelude

# name -> function of (dtype of the arguments, their texts)
TABLE: dict[str, Callable[..., str]] = {
    **{name: _infix(operator) for name, operator in _OPERATORS.items()},
    **{name: _call(f"tl.{name}") for name in _OF_TRITON},
    **{name: _call(name) for name in _OWN},
    "pow": _call("power"),
    "floordiv": _by_kind("floordiv"),
    "mod": _by_kind("mod"),
    "minimum": _extremum("minimum"),
    "maximum": _extremum("maximum"),
    "add": lambda dtype, a, b: f"{a} {'|' if dtype.kind == 'bool' else '+'} {b}",  # bits would wrap
    "div": lambda dtype, a, b: f"tl.div_rn({a}, {b})" if dtype == f32 else f"{a} / {b}",
    "sqrt": lambda dtype, x: f"tl.sqrt_rn({x})" if dtype == f32 else f"tl.sqrt({x})",
    "erf": lambda dtype, x: f"{'erf_single' if dtype == f32 else 'tl.erf'}({x})",
    "neg": lambda dtype, x: f"-{x}",
    "not": lambda dtype, x: f"{x} == 0" if dtype.kind == "bool" else f"~{x}",
    "sigmoid": lambda dtype, x: f"1.0 / (1.0 + tl.exp(-{x}))",
    "round": _round,
    "trunc": lambda dtype, x: f"tl.where({x} < 0, tl.ceil({x}), tl.floor({x}))",
    "isnan": lambda dtype, x: f"{x} != {x}",
}
