"""From torch's symbolic integers to our dims, and the proof that a trace holds for all sizes.

Modules are exported with sizes treated as unknown, 0 and 1 included. What the trace had to assume
all the same (a branch of the user's code on a size, a relation between two axes) is a *condition*;
each must follow from the declared ranges. A range is narrowed where that makes a condition true,
and the import fails, naming the condition, where nothing does.
"""

import sys
import traceback
from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Max, Min

from ..ir import dim as dims
from ..ir.dim import Dim, Symbol
from ..ir.errors import DimError, UnsupportedModel
from ..ir.facts import Facts

_TORCH = Path(torch.__file__).parent

_CALLS = {
    "FloorDiv": dims.floordiv,
    "CleanDiv": dims.floordiv,
    "CeilDiv": dims.ceildiv,
    "Mod": dims.mod,
    "PythonMod": dims.mod,
}
_EXTREMA = ("Max", "Min")
_UNBOUND = sys.maxsize - 1  # torch's range of a size that may be any


class SymbolTable:
    """The declared symbols of one exported program, and the translation of its sizes."""

    def __init__(self, env: ShapeEnv | None):
        self.env = env
        self.symbols: dict[str, Symbol] = {}
        self.notes: list[str] = []  # ranges that were narrowed, and why
        self._dims: dict[str, Dim] = {}  # torch's symbol -> ours, or a dim over ours
        self._data: dict[str, str] = {}  # torch's symbols of numbers that are no sizes -> ranges
        self._cache: dict[sympy.Expr, Dim] = {}

    def declare(self, symbol: Symbol) -> None:
        """Declare a symbol of ours; ranges of one declared before are intersected."""
        known = self.symbols.get(symbol.name)
        if known is not None:
            highs = [hi for hi in (known.hi, symbol.hi) if hi is not None]
            lo, hi = max(known.lo, symbol.lo), min(highs) if highs else None
            symbol = replace(known, lo=lo, hi=hi, hint=known.hint or symbol.hint)
        if symbol.hi is not None and symbol.hi < symbol.lo:
            raise DimError(
                f"no size fits dim {symbol.name}",
                facts=f"its range would be [{symbol.lo}, {symbol.hi}]",
                fix="widen the range given in dynamic_shapes",
            )
        self.symbols[symbol.name] = symbol

    def may_be_size(self, symbol: sympy.Symbol) -> bool:
        """Whether torch's symbol of a number read from a tensor is never negative.

        One that may be is data from then on: `is_data` says so of what is computed from it.
        """
        assert self.env is not None, "a symbol has an environment"
        bounds = self.env.bound_sympy(symbol)
        if getattr(bounds.lower, "is_Integer", False) and bounds.lower >= 0:
            return True
        self._data[symbol.name] = f"[{bounds.lower}, {bounds.upper}]"
        return False

    def is_data(self, number: torch.SymInt | int) -> bool:
        """Whether a number is computed from some that `may_be_size` found to be no sizes."""
        if not isinstance(number, torch.SymInt):
            return False
        return any(symbol.name in self._data for symbol in number.node.expr.free_symbols)

    def declare_in_range(self, symbol: sympy.Symbol, most: Dim = 0) -> str:
        """Declare torch's symbol of a size in the range torch keeps of it. -> the name of ours.

        `most`: what it may be at most, where torch says less (of a mask before it is broadcast).
        """
        assert self.env is not None, "a symbol has an environment"
        bounds = self.env.bound_sympy(symbol)
        is_bound = getattr(bounds.upper, "is_Integer", False) and isinstance(most, int)
        hi = max(int(bounds.upper), most) if is_bound else None
        name, traced = self.fresh(symbol.name), self.env.backed_var_to_val.get(symbol)
        hint = None if traced is None else int(traced)
        self.declare(Symbol(name, int(bounds.lower), hi, hint=hint))
        self.bind(symbol.name, dims.symbol(name))
        self._cache.clear()
        return name

    def bind(self, torch_name: str, dim: Dim) -> None:
        """Say which dim of ours torch's symbol is."""
        self._dims[torch_name] = dim

    def bound(self, torch_name: str) -> Dim | None:
        """The dim of torch's symbol, None before `bind`."""
        return self._dims.get(torch_name)

    def fresh(self, name: str) -> str:
        """`name`, or one like it that no symbol has."""
        unique, count = name, 1
        while unique in self.symbols:
            count += 1
            unique = f"{name}_{count}"
        return unique

    @property
    def facts(self) -> Facts:
        """Queries under the present ranges."""
        return Facts(self.symbols)

    def dim(self, value: Any) -> Dim:
        """An int, SymInt or SymPy expression as a dim.

        Raises `UnsupportedModel` for a size that depends on data, `DimError` for an expression
        outside integer arithmetic.
        """
        if isinstance(value, int):
            return value
        expr = value.node.expr if isinstance(value, torch.SymInt) else value
        if expr not in self._cache:
            self._cache[expr] = self._convert(self.env.replace(expr) if self.env else expr)
        return self._cache[expr]

    def shape(self, sizes: Iterable[Any]) -> tuple[Dim, ...]:
        """A torch shape as ours."""
        return tuple(self.dim(size) for size in sizes)

    def _convert(self, expr: sympy.Basic) -> Dim:
        if isinstance(expr, sympy.Integer | int):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            if expr.name in self._data:
                raise DimError(
                    "a number that is read from a tensor may be negative, and is used as a size",
                    facts=f"it is {expr.name}, in {self._data[expr.name]}",
                    fix="say that it is a size after item(): torch._check(n >= 0)",
                )
            if expr.name not in self._dims:
                raise UnsupportedModel(
                    "a size depends on the values of a tensor",
                    facts=f"the size {expr.name} is known only when the module runs",
                    fix="keep what it is computed by out of the module",
                )
            return self._dims[expr.name]
        args = [self._convert(arg) for arg in expr.args]
        if isinstance(expr, sympy.Add):
            return sum(args)
        if isinstance(expr, sympy.Mul):
            return dims.product(args)
        if isinstance(expr, sympy.Pow) and isinstance(args[1], int) and args[1] >= 0:
            return dims.product([args[0]] * args[1])
        kind = type(expr).__name__
        if kind in _EXTREMA:
            return self._extremum(kind, args)
        if kind in _CALLS and len(args) == 2:
            return _CALLS[kind](*args)
        raise DimError(
            "a size is not integer arithmetic over the inputs' sizes",
            facts=f"the expression is {expr} ({kind})",
            fix="make the axis it comes from static",
        )

    def _extremum(self, kind: str, args: list[Dim]) -> Dim:
        """The largest or smallest dim: the one itself where the ranges decide which it is."""
        facts, result = self.facts, args[0]
        for arg in args[1:]:
            low, high = (result, arg) if facts.proved_le(result, arg) else (arg, result)
            if facts.proved_le(low, high):
                result = high if kind == "Max" else low
            else:
                result = (dims.maximum if kind == "Max" else dims.minimum)(result, arg)
        return result

    # ---- conditions ------------------------------------------------------------------------

    def prove_conditions(self) -> None:
        """Prove what the trace assumed, narrowing ranges where that suffices.

        Raises `DimError` with every condition that stays open.
        """
        if self.env is None:
            return
        conditions = [
            self.env.replace(guard.expr) for guard in self.env.guards if _is_of_the_module(guard)
        ]
        conditions += self._in_range_of_equals()
        # Shapes that only meet where a table is long enough (t and min(t, 256)) show up as a guard
        # of torch's broadcasting: no condition of its own, but it says which range is meant.
        hints = [self.env.replace(guard.expr) for guard in self.env.guards]
        hints = [h for h in hints if isinstance(h, sympy.Eq) and h.atoms(Max, Min)]
        # narrowing for one condition can prove another: a second look costs nothing
        for condition in [*conditions, *hints]:
            if not self._holds(condition) and not self._divide(condition):
                self._narrow(condition)
        open_ones = [c for c in dict.fromkeys(conditions) if not self._holds(c)]
        if open_ones:
            raise DimError(
                "the module takes other paths at other sizes",
                facts="assumed while tracing:\n"
                + "\n".join(f"  {self._text(c)}" for c in open_ones),
                fix="declare ranges for which they hold (dynamic_shapes), or make the axes static",
            )

    def _in_range_of_equals(self) -> list[Any]:
        """Sizes lie in the ranges of symbols found equal: of x[:n], say, that meets n elements."""
        found: list[Any] = []
        assert self.env is not None, "symbols have an environment"
        for symbol, equal in self.env.replacements.items():
            if all(part.name in self._dims for part in equal.free_symbols):
                bounds = self.env.bound_sympy(symbol)
                if bounds.lower.is_Integer:
                    found.append(sympy.Ge(equal, bounds.lower))
                if bounds.upper.is_Integer and bounds.upper < _UNBOUND:
                    found.append(sympy.Le(equal, bounds.upper))
        return found

    def assume_divisors(self) -> None:
        """Make sizes multiples of what divides them by the trace's guards, which hold: no proof."""
        assert self.env is not None, "guards have an environment"
        for guard in self.env.guards:
            self._divide(self.env.replace(guard.expr))

    def _holds_under(self, condition: Any, symbols: Mapping[str, Symbol]) -> bool:
        """Whether a condition would hold with these ranges."""
        trial = SymbolTable(self.env)
        trial.symbols, trial._dims = dict(symbols), self._dims
        return trial._holds(condition)

    def _holds(self, condition: Any) -> bool:
        if condition in (True, sympy.true):
            return True
        if isinstance(condition, sympy.And):
            return all(self._holds(part) for part in condition.args)
        if isinstance(condition, sympy.Or):
            return any(self._holds(part) for part in condition.args)
        if not isinstance(condition, sympy.core.relational.Relational):
            return False
        nonnegative = self._as_nonnegative(condition)
        if nonnegative is not None:
            return self.facts.proved_le(0, nonnegative)
        a, b = self._convert(condition.lhs), self._convert(condition.rhs)
        if isinstance(condition, sympy.Ne):
            return self.facts.proved_ne(a, b)
        return self.facts.proved_eq(a, b) or self._is_multiple(condition)

    def _is_multiple(self, condition: sympy.Eq) -> bool:
        divided = _divisibility(condition)
        return divided is not None and self.facts.proved_multiple(
            self._convert(divided[0]), divided[1]
        )

    def _narrow(self, condition: Any) -> None:
        names = sorted(self._symbols_in(condition))
        trials = [self._with_least(names, 2)]
        trials += self._within_bounds(condition, names)
        trials += self._within_constants(condition, names)
        for symbols in trials:
            if self._holds_under(condition, symbols):
                changed = [s for s in symbols.values() if s != self.symbols[s.name]]
                shown = ", ".join(_range_text(s) for s in changed)
                self.notes.append(f"{shown}: the module branches on {self._text(condition)}")
                self.symbols = dict(symbols)
                self._cache.clear()  # some minima are now decided
                return

    def _divide(self, condition: Any) -> bool:
        """Where k must divide n: n becomes k * n_by_k, so that quotients of n are whole."""
        divided = _divisibility(condition)
        names = sorted(self._symbols_in(condition))
        if divided is None or len(names) != 1:
            return False
        whole, name = self._convert(divided[0]), names[0]
        if whole != dims.symbol(name):
            return False
        known, step = self.symbols[name], divided[1]
        part = self.fresh(f"{name}_by_{step}")
        self.notes.append(f"{name} is a multiple of {step}: it is {step}*{part}")
        del self.symbols[name]
        self.symbols[part] = Symbol(
            part,
            max(1, -(-known.lo // step)),
            None if known.hi is None else known.hi // step,
            hint=None if known.hint is None else known.hint // step,
        )
        value = {name: dims.symbol(part) * step}
        self._dims = {s: dims.substitute(d, value) for s, d in self._dims.items()}
        self._cache.clear()
        return True

    def _with_least(self, names: Iterable[str], least: int) -> dict[str, Symbol]:
        narrowed = dict(self.symbols)
        for name in names:
            narrowed[name] = replace(narrowed[name], lo=max(narrowed[name].lo, least))
        return narrowed

    def _within_bounds(self, condition: Any, names: list[str]) -> list[dict[str, Symbol]]:
        """The ranges under which an inequality over one symbol holds."""
        nonnegative = self._as_nonnegative(condition)
        if len(names) != 1 or nonnegative is None:
            return []
        name, known = names[0], self.symbols[names[0]]
        one = dims.symbol(name)
        constant = dims.substitute(nonnegative, {name: 0})
        slope = dims.substitute(nonnegative, {name: 1}) - constant
        if not isinstance(slope, int) or not isinstance(constant, int) or slope == 0:
            return []
        if nonnegative != one * slope + constant:
            return []
        if slope > 0:
            narrowed = replace(known, lo=max(known.lo, -(constant // slope)))
        else:
            top = constant // -slope
            narrowed = replace(known, hi=top if known.hi is None else min(known.hi, top))
        if narrowed.hi is not None and narrowed.hi < narrowed.lo:
            return []
        return [{**self.symbols, name: narrowed}]

    def _within_constants(self, condition: Any, names: list[str]) -> list[dict[str, Symbol]]:
        """An equation with minima in it: its symbol up to the largest of constants it names."""
        if len(names) != 1 or not isinstance(condition, sympy.Eq):
            return []
        known = self.symbols[names[0]]
        highs = [*map(int, condition.atoms(sympy.Integer))] or [0]
        tops = range(known.lo, 1 + min(max(highs), known.hi or max(highs)))

        def up_to(hi: int) -> dict[str, Symbol]:
            return {**self.symbols, known.name: replace(known, hi=hi)}

        # what holds in a range holds in every part of it
        fitting = bisect(tops, False, key=lambda hi: not self._holds_under(condition, up_to(hi)))
        return [up_to(tops[fitting - 1])] if fitting else []

    def _as_nonnegative(self, condition: Any) -> Dim | None:
        """The dim that an inequality says is 0 or more."""
        if not hasattr(condition, "gts"):
            return None
        is_strict = isinstance(condition, sympy.StrictLessThan | sympy.StrictGreaterThan)
        return self._convert(condition.gts) - self._convert(condition.lts) - int(is_strict)

    def _symbols_in(self, condition: Any) -> set[str]:
        bound = [self._dims[s.name] for s in condition.free_symbols if s.name in self._dims]
        return {name for dim in bound for name in dims.symbols_of(dim)}

    def _text(self, condition: Any) -> str:
        text = {
            s: sympy.Symbol(str(self._dims.get(s.name, s.name))) for s in condition.free_symbols
        }
        return str(condition.xreplace(text))


def _range_text(symbol: Symbol) -> str:
    top = f"to {symbol.hi}" if symbol.hi is not None else "up"
    step = f" in steps of {symbol.multiple}" if symbol.multiple > 1 else ""
    return f"{symbol.name} is {symbol.lo} {top}{step}"


def _is_of_the_module(guard: Any) -> bool:
    """Whether a guard comes from the user's code, not from torch working out strides.

    What torch's operators ask of sizes is asked again by our type rules. `torch.nn` counts as the
    user's: its Python code may choose between operations.
    """
    frame = guard.sloc.framework_loc
    if not isinstance(frame, traceback.FrameSummary):
        return frame is None  # text names a C++ source
    path = Path(frame.filename)
    inner = path.parts[len(_TORCH.parts) :] if path.is_relative_to(_TORCH) else None
    return inner is None or inner[:1] == ("nn",)


def _divisibility(condition: Any) -> tuple[sympy.Expr, int] | None:
    """(x, k) when the condition says that k divides x."""
    if not isinstance(condition, sympy.Eq):
        return None
    for side, other in ((condition.lhs, condition.rhs), (condition.rhs, condition.lhs)):
        if type(side).__name__ in ("Mod", "PythonMod") and other == 0:
            value, step = side.args
            if isinstance(step, sympy.Integer) and step > 0:
                return value, int(step)
    return None


def shape_env_of(values: Iterable[Any]) -> ShapeEnv | None:
    """The environment that the symbolic sizes among `values` (fake tensors, SymInts) belong to."""
    for value in values:
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None
