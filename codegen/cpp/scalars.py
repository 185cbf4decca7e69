"""The scalar functions of ir/scalar.py, constants and conversions, as C++ expressions."""

import math
from collections.abc import Sequence

from ...ir.errors import BuildError
from ...ir.scalar import PREDICATES
from ...ir.types import DType, bool_, f32, f64
from ..loops import Cast, Const, Element, widened

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^", "shift_right": ">>",
}  # fmt: skip
_SAME = """floordiv mod abs exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tanh erf sigmoid
    floor ceil trunc pow""".split()  # of the same name in tw_math.h, but for its prefix
_CALLS = {name: f"tw_{name}" for name in _SAME}
_CALLS |= {"minimum": "tw_min", "maximum": "tw_max", "round": "tw_rint"}
FUNCTIONS = frozenset((*_INFIX, *_CALLS, "neg", "not", "where", "isnan"))
# how a dtype is computed with, and how the narrow floats, computed with in f32, are stored
VALUE_TYPES = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "f8e4m3": "float",
    "f8e5m2": "float", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t",
    "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t", "bool": "bool",
}  # fmt: skip
NARROW = {"f16": "uint16_t", "bf16": "uint16_t", "f8e4m3": "uint8_t", "f8e5m2": "uint8_t"}


def apply(fn: str, args: Sequence[Element], texts: Sequence[str], dtype: DType) -> str:
    """`fn` over already emitted arguments."""
    if fn not in FUNCTIONS:
        raise BuildError(f"no C++ for the scalar function {fn!r}")
    # arithmetic happens in the arguments' type; integers narrower than int come back to theirs
    kind = args[-1].dtype
    type = VALUE_TYPES[kind.name]
    operands = [convert(t, a.dtype, kind) for t, a in zip(texts, args)]
    if fn == "where":
        return f"({texts[0]} ? {operands[1]} : {operands[2]})"
    if fn == "isnan":
        return f"({texts[0]} != {texts[0]})"
    if fn == "neg":
        return f"({type})(0 - {texts[0]})" if not kind.is_float else f"(-{texts[0]})"
    if fn == "not":
        return f"(!{texts[0]})" if kind == bool_ else f"({type})(~{texts[0]})"
    if fn == "pow":
        return _power(args[1], operands)
    if fn in _CALLS:
        return f"{_CALLS[fn]}({', '.join(operands)})"
    text = f"({operands[0]} {_INFIX[fn]} {operands[1]})"
    return text if fn in PREDICATES or kind.is_float else f"({type}){text}"


def _power(exponent: Element, operands: Sequence[str]) -> str:
    x, y = operands
    if isinstance(exponent, Const):
        # squares and cubes are what models write; products are exact enough and vectorise
        match float(exponent.value):
            case 1.0:
                return x
            case 2.0:
                return f"({x} * {x})"
            case 3.0:
                return f"({x} * {x} * {x})"
            case -1.0:
                return f"(1 / {x})"
    return f"tw_pow({x}, {y})"


def constant(value: float | int | bool, dtype: DType) -> str:
    """A literal of `dtype`."""
    type = VALUE_TYPES[dtype.name]
    if dtype == bool_:
        return "true" if value else "false"
    if dtype.is_float:
        value = float(value)
        if math.isnan(value):
            return f"({type})TW_NAN"
        if math.isinf(value):
            return f"({type})TW_INF" if value > 0 else f"(-({type})TW_INF)"
        text = repr(value) if dtype == f64 else f"{_as_f32(value)!r}f"
        return f"({text})" if text.startswith("-") else text
    value = int(value)
    if dtype.bits == 64:
        # the lowest value has no literal of its own
        if dtype.kind == "uint":
            return f"((uint64_t){value}ull)"
        return "INT64_MIN" if value == -(2**63) else f"((int64_t){value})"
    return f"(({type}){value})"


def _as_f32(value: float) -> float:
    # the double that prints shortest and still rounds to the same f32
    import numpy as np

    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    if np.isinf(narrow):
        raise BuildError(f"the constant {value!r} is beyond f32", fix="use inf or compute in f64")
    return float(str(narrow))


def cast(text: str, arg: Element, dtype: DType) -> str:
    """The element `arg`, emitted as `text`, as `dtype`."""
    source = arg.dtype
    if isinstance(arg, Cast) and source.is_integer and dtype.is_float:
        type = VALUE_TYPES[dtype.name]
        if VALUE_TYPES[arg.arg.dtype.name] == type:
            # there and back, which GCC would take for a rounding
            text, source = f"tw_float_again<{type}>({text})", widened(dtype)
    return convert(text, source, dtype)


def convert(text: str, source: DType, dtype: DType) -> str:
    """A value of `source` as `dtype`; to a narrow float it is rounded and stays a float."""
    if dtype.name in NARROW:
        single = convert(text, source, f32)
        return f"tw_round_{dtype.name}({single})"
    if VALUE_TYPES[source.name] == VALUE_TYPES[dtype.name]:
        return text
    if dtype == bool_:
        return f"({text} != 0)"
    if source.is_float and (dtype.bits < 32 or dtype.kind == "uint") and dtype.bits < 64:
        # by way of a signed one that holds its values, so that what is negative wraps
        return f"({VALUE_TYPES[dtype.name]})(int{32 if dtype.bits < 32 else 64}_t){text}"
    return f"({VALUE_TYPES[dtype.name]}){text}"
