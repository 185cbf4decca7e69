"""How dtypes, constants and dims are spelled in Triton source."""

from collections.abc import Callable
from math import inf, isnan

from ...ir.dim import Dim, DimCall
from ...ir.facts import Facts
from ...ir.types import DType

# dtype -> (value type in `tl`, pointer element in a signature)
_NAMES = {
    "f64": ("float64", "fp64"),
    "f32": ("float32", "fp32"),
    "f16": ("float16", "fp16"),
    "bf16": ("bfloat16", "bf16"),
    "f8e4m3": ("uint8", "u8"),  # bytes: see float8.py
    "f8e5m2": ("uint8", "u8"),
    "i64": ("int64", "i64"),
    "i32": ("int32", "i32"),
    "i16": ("int16", "i16"),
    "i8": ("int8", "i8"),
    "u64": ("uint64", "u64"),
    "u32": ("uint32", "u32"),
    "u16": ("uint16", "u16"),
    "u8": ("uint8", "u8"),
    "bool": ("int1", "i1"),
}


def value_type(dtype: DType) -> str:
    """The dtype, as it is stored, as `tl.<name>`."""
    return f"tl.{_NAMES[dtype.name][0]}"


def pointer_type(dtype: DType) -> str:
    """The dtype of a pointer argument, as a signature spells it."""
    return f"*{_NAMES[dtype.name][1]}"


def constant(value: float | int | bool, dtype: DType) -> str:
    """A Python literal that Triton gives the wanted type when it meets a value of `dtype`."""
    if dtype.name == "bool":
        return repr(bool(value))
    if not dtype.is_float:
        return f"({int(value)})" if value < 0 else repr(int(value))
    value = float(value)
    if isnan(value):
        return 'float("nan")'
    if value in (inf, -inf):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 else repr(value)


# Leaf of a dim: (symbol, whether 64 bits are needed) -> the name of a value
Leaf = Callable[[str, bool], str]


def dim_text(dim: Dim, leaf: Leaf, facts: Facts, is_wide: bool) -> str:
    """A dim as an integer expression. Divisions round towards minus infinity, as dims do."""
    if isinstance(dim, int):
        return f"({dim})" if dim < 0 else str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [
            leaf(atom, is_wide) if isinstance(atom, str) else _call(atom, leaf, facts, is_wide)
            for atom, power in monomial
            for _ in range(power)
        ]
        if coefficient != 1 or not factors:
            factors.append(str(coefficient) if coefficient >= 0 else f"({coefficient})")
        terms.append(" * ".join(factors))
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"


def _call(call: DimCall, leaf: Leaf, facts: Facts, is_wide: bool) -> str:
    a, b = (dim_text(arg, leaf, facts, is_wide) for arg in call.args)
    if call.op in ("min", "max"):
        return f"tl.{call.op}imum({a}, {b})"
    # Triton divides as C does: towards zero. The same where nothing is negative.
    if facts.proved_le(0, call.args[0]) and facts.proved_lt(0, call.args[1]):
        return f"({_atom(a)} {'//' if call.op == 'floordiv' else '%'} {_atom(b)})"
    return f"{call.op}_down({a}, {b})"


def _atom(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() or text.startswith("(") else f"({text})"
