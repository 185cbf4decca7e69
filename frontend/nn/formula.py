"""Formulas in Python's own arithmetic over values of a graph: every operator appends a node."""

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.builder import Builder
from ...ir.graph import Value
from ...ir.types import DType, bool_


class Number:
    """A value of a formula, of the formula's dtype or bool; what it meets is made alike.

    Operators are ops of the IR; any other op is a method: `x.exp()`, `(x < 0).where(a, b)`.
    """

    def __init__(self, b: Builder, value: Value, dtype: DType):
        self._b, self.value, self.dtype = b, value, dtype

    def apply(self, op: str, *operands: "Number | float") -> "Number":
        """`op` of these, numbers as constants."""
        values = [self._value(x) for x in operands]
        return Number(self._b, getattr(self._b, op)(*values), self.dtype)

    def _value(self, x: "Number | float") -> Value:
        if isinstance(x, Number):
            return x.value
        return self._b.constant(x, bool_ if isinstance(x, bool) else self.dtype)

    def __getattr__(self, op: str) -> Callable[..., "Number"]:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *others: self.apply(op, self, *others)

    def __neg__(self) -> "Number":
        return self.apply("neg", self)

    def __abs__(self) -> "Number":
        return self.apply("abs", self)

    def __invert__(self) -> "Number":
        return self.apply("not_", self)

    def horner(self, *coefficients: float) -> "Number":
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
    setattr(Number, f"__{_name}__", _operator(_op))
    setattr(Number, f"__r{_name}__", _operator(_op, is_reversed=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _operator(_name))
for _name in ("and", "or"):
    setattr(Number, f"__{_name}__", _operator(f"{_name}_"))


def computed(
    b: Builder, formula: Callable[..., Number], operands: Sequence[Value], least: DType
) -> Value:
    """The formula of values of one float dtype, in that or in `least` where that is wider."""
    dtype = operands[0].dtype
    wide = dtype if dtype.bits >= least.bits else least
    numbers = [Number(b, v if wide == dtype else b.cast(v, dtype=wide), wide) for v in operands]
    result = formula(*numbers).value
    return result if result.dtype in (dtype, bool_) else b.cast(result, dtype=dtype)
