"""From the shapes a caller gives to the values of symbols, with every disagreement reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .dim import Dim, Symbol, evaluate, symbols_of
from .errors import DimError


@dataclass(frozen=True)
class ArgumentSpec:
    """What is declared of an input or state: its name and shape."""

    name: str
    shape: tuple[Dim, ...]


class Binder:
    """Binds the symbols of `arguments` from actual shapes."""

    def __init__(self, arguments: Sequence[ArgumentSpec], symbols: Mapping[str, Symbol]):
        self.arguments = arguments
        self.symbols = symbols
        # symbol -> (argument, axis, coefficient, constant): the size is coefficient * s + constant
        self.sources: dict[str, tuple[int, int, int, int]] = {}
        for index, argument in enumerate(arguments):
            for axis, dim in enumerate(argument.shape):
                solved = _linear(dim)
                if solved is None:
                    continue
                name, coefficient, constant = solved
                source = index, axis, coefficient, constant
                if self.sources.setdefault(name, source)[2] != 1 and source[2:] == (1, 0):
                    self.sources[name] = source

    def bind(
        self, shapes: Sequence[Sequence[int]], given: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Values of all symbols; DimError lists every dim that does not fit its declaration."""
        values: dict[str, int] = dict(given or {})
        problems: list[str] = []
        for argument, shape in zip(self.arguments, shapes, strict=True):
            if len(shape) != len(argument.shape):
                problems.append(
                    f"{argument.name} has rank {len(shape)} ({list(shape)}), declared rank"
                    f" {len(argument.shape)} [{', '.join(map(str, argument.shape))}]"
                )
        if problems:
            raise DimError("inputs have the wrong rank", facts="\n".join(problems))
        for name, (index, axis, coefficient, constant) in self.sources.items():
            if name in values:
                continue
            value, rest = divmod(shapes[index][axis] - constant, coefficient)
            if rest:
                problems.append(
                    f"{self.arguments[index].name} axis {axis} is {shapes[index][axis]}, declared"
                    f" {self.arguments[index].shape[axis]}: no whole {name} fits"
                )
            values[name] = value
        problems += [p for s in self.symbols.values() if (p := self._range_problem(s, values))]
        if not problems:
            problems = self._mismatches(shapes, values)
        if problems:
            raise DimError(
                "sizes do not fit what the program was compiled for",
                facts="\n".join(problems),
                fix="pass sizes in range, or compile again with dynamic_shapes that allow them",
            )
        return values

    def _range_problem(self, symbol: Symbol, values: Mapping[str, int]) -> str | None:
        if symbol.name not in values:
            return f"{symbol.name} appears in no input: nothing to bind it from"
        value = values[symbol.name]
        top = "any size" if symbol.hi is None else symbol.hi
        source = self.sources.get(symbol.name)
        where = f" ({self.arguments[source[0]].name} axis {source[1]})" if source else ""
        if value < symbol.lo or (symbol.hi is not None and value > symbol.hi):
            return f"dim {symbol.name}{where} is {value}, its range is [{symbol.lo}, {top}]"
        if value % symbol.multiple:
            return f"dim {symbol.name}{where} is {value}, must be a multiple of {symbol.multiple}"
        return None

    def _mismatches(self, shapes: Sequence[Sequence[int]], values: Mapping[str, int]) -> list[str]:
        problems = []
        for argument, shape in zip(self.arguments, shapes, strict=True):
            for axis, (dim, actual) in enumerate(zip(argument.shape, shape, strict=True)):
                expected = dim if isinstance(dim, int) else evaluate(dim, values)
                if expected != actual:
                    said = f" ({dim})" if not isinstance(dim, int) else ""
                    problems.append(
                        f"{argument.name} axis {axis} is {actual}, must be {expected}{said}"
                    )
        return problems


def _linear(dim: Dim) -> tuple[str, int, int] | None:
    """(symbol, coefficient, constant) when dim is coefficient * symbol + constant."""
    names = symbols_of(dim)
    if isinstance(dim, int) or len(names) != 1:
        return None
    name = next(iter(names))
    coefficient = constant = 0
    for monomial, factor in dim.terms:
        if monomial == ():
            constant = factor
        elif monomial == ((name, 1),):
            coefficient = factor
        else:
            return None
    return name, coefficient, constant
