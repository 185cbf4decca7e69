"""Formulas in Python's own arithmetic over values of a graph: every operator appends a node."""

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import DType, bool_


class Term:
    """A value of a formula, of the formula's dtype or bool; what it meets is made alike.

    Operators are ops of the IR; any other op is a method: `x.exp()`, `(x < 0).where(a, b)`.
    """

    def __init__(self, b: Builder, value: Value, dtype: DType):
        self._b, self.value, self.dtype = b, value, dtype

    def apply(self, op: str, *operands: "Term | float") -> "Term":
        """`op` of these, numbers as constants."""
        values = [self._value(x) for x in operands]
        return Term(self._b, getattr(self._b, op)(*values), self.dtype)

    def _value(self, x: "Term | float") -> Value:
        if isinstance(x, Term):
            return x.value
        return self._b.constant(x, bool_ if isinstance(x, bool) else self.dtype)

    def __getattr__(self, op: str) -> Callable[..., "Term"]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *others: self.apply(op, self, *others)

    def __neg__(self) -> "Term":
        return self.apply("neg", self)

    def __abs__(self) -> "Term":
        return self.apply("abs", self)

    def __invert__(self) -> "Term":
        return self.apply("not_", self)

    def horner(self, *coefficients: float) -> "Term":
        """The polynomial in it, the highest power's coefficient first."""
        first, *others = coefficients
        total: Any = first
        for coefficient in others:
            total = self * total + coefficient
        return total


def _operator(op: str, is_reversed: bool = False) -> Any:
    if is_reversed:
        return lambda x, y: x.apply(op, y, x)
    return lambda x, y: x.apply(op, x, y)


for _name, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(Term, f"__{_name}__", _operator(_op))
    setattr(Term, f"__r{_name}__", _operator(_op, is_reversed=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Term, f"__{_name}__", _operator(_name))
for _name in ("and", "or"):
    setattr(Term, f"__{_name}__", _operator(f"{_name}_"))


def computed(
    b: Builder, formula: Callable[..., Term], operands: Sequence[Value], least: DType
) -> Value:
    """The formula of values of one float dtype, in that or in `least` where that is wider."""
    dtype = operands[0].dtype
    wide = dtype if dtype.bits >= least.bits else least
    numbers = [Term(b, v if wide == dtype else b.cast(v, dtype=wide), wide) for v in operands]
    result = formula(*numbers).value
    return result if result.dtype in (dtype, bool_) else b.cast(result, dtype=dtype)
