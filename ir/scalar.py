"""The scalar language: what one element of an elementwise op is.

Expressions are written in op declarations (our own source, never text from a file), parsed once
into `Scalar` trees that the reference evaluates and every emitter prints.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import erf as _erf
from typing import Any

import numpy as np

from .faults import checked_divisor


@dataclass(frozen=True)
class Scalar:
    """A node of the tree: `fn` is an operand ("arg"), attribute ("attr"), "const" or a FUNCTION."""

    fn: str
    args: tuple["Scalar", ...] = ()
    value: Any = None  # name of the operand or attribute, or the constant


_vector_erf = np.vectorize(_erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number only, so that nothing overflows
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


# name -> NumPy implementation. Emitters keep a table over the same names (tested to be complete).
FUNCTIONS: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "floordiv": lambda x, y: x // checked_divisor("floordiv", x, y),
    "mod": lambda x, y: np.mod(x, checked_divisor("mod", x, y)),
    "neg": lambda x: -x,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shift_right": lambda x, y: x >> y,  # y from 0 to the bits of x, exclusive
    "not": lambda x: ~x,
    "where": np.where,
    "minimum": np.minimum,  # NaN wins, as in torch
    "maximum": np.maximum,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": lambda x: _vector_erf(x).astype(np.asarray(x).dtype, copy=False),
    "sigmoid": _sigmoid,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,  # half to even
    "trunc": np.trunc,
    "pow": np.power,
    "isnan": np.isnan,
}

# facts of the functions, from which those of ops follow
COMMUTATIVE = frozenset("add mul and or xor minimum maximum eq ne".split())
# many instructions each: worth storing rather than computing again
EXPENSIVE = frozenset("exp exp2 log log2 log10 log1p expm1 sin cos tanh erf sigmoid pow".split())
PREDICATES = frozenset("lt le gt ge eq ne isnan".split())  # their results are bool
DIVISIONS = frozenset(("floordiv", "mod"))  # of integers, by what may not be 0

_SIGNS = dict(
    zip(
        "add sub mul div floordiv mod and or xor shift_right lt le gt ge eq ne".split(),
        "+ - * / // % & | ^ >> < <= > >= == !=".split(),
        strict=True,
    )
)

# elementwise ops by name, with their operands and scalars: expressions may call them as functions
_DEFINED: dict[str, tuple[tuple[str, ...], str]] = {}

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.RShift: "shift_right",
}
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


def define(name: str, operands: tuple[str, ...], text: str) -> None:
    """Let expressions call `name`; what it stands for is put in its place."""
    _DEFINED[name] = operands, text


def substitute(tree: Scalar, args: Mapping[str, Scalar]) -> Scalar:
    """The tree with operands replaced."""
    if tree.fn == "arg":
        return args.get(tree.value, tree)
    return Scalar(tree.fn, tuple(substitute(a, args) for a in tree.args), tree.value)


def scalar_text(tree: Scalar) -> str:
    """The text that `parse_scalar` reads back to the tree, of numbers that are finite."""
    args = [scalar_text(a) for a in tree.args]
    match tree.fn:
        case "arg" | "attr":
            return tree.value
        case "const":
            return repr(tree.value)
        case "not":
            return f"(~{args[0]})"
        case fn if fn in _SIGNS:
            return f"({args[0]} {_SIGNS[fn]} {args[1]})"
    return "(-" + args[0] + ")" if tree.fn == "neg" else f"{tree.fn}({', '.join(args)})"


def functions_of(tree: Scalar) -> frozenset[str]:
    """The functions that the tree applies."""
    own = frozenset((tree.fn,)) & FUNCTIONS.keys()
    return own.union(*(functions_of(a) for a in tree.args))


def function_over(tree: Scalar, operands: tuple[str, ...]) -> str | None:
    """The function that the tree is of the operands as they stand; None for an expression."""
    return tree.fn if tree.args == tuple(Scalar("arg", value=n) for n in operands) else None


@cache
def parse_scalar(text: str, operands: tuple[str, ...], attrs: tuple[str, ...]) -> Scalar:
    """The tree of a declaration's `scalar` text."""

    def convert(node: ast.expr) -> Scalar:
        match node:
            case ast.Name(id=name) if name in operands:
                return Scalar("arg", value=name)
            case ast.Name(id=name) if name in attrs:
                return Scalar("attr", value=name)
            case ast.Constant(value=value):
                return Scalar("const", value=value)
            case ast.BinOp(left=left, op=operator, right=right):
                return Scalar(_BINARY[type(operator)], (convert(left), convert(right)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Scalar("neg", (convert(operand),))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return Scalar("not", (convert(operand),))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return Scalar(_COMPARE[type(operator)], (convert(left), convert(right)))
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return Scalar(name, tuple(convert(a) for a in args))
            case ast.Call(func=ast.Name(id=name), args=args) if name in _DEFINED:
                names, inner = _DEFINED[name]
                given = dict(zip(names, map(convert, args), strict=True))
                return substitute(parse_scalar(inner, names, ()), given)
        raise ValueError(f"scalar {text!r}: cannot read {ast.unparse(node)!r}")

    return convert(ast.parse(text, mode="eval").body)


def evaluate_scalar(
    tree: Scalar, operands: Mapping[str, np.ndarray], attrs: Mapping[str, Any]
) -> np.ndarray:
    """The tree's value over NumPy arrays."""
    if tree.fn == "arg":
        return operands[tree.value]
    if tree.fn == "attr":
        return attrs[tree.value]
    if tree.fn == "const":
        return tree.value
    return FUNCTIONS[tree.fn](*(evaluate_scalar(a, operands, attrs) for a in tree.args))
