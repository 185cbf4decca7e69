"""Parser of dims: `sum := product (('+'|'-') product)*`, with `*`, `//`, `%`, `min`, `max`.

Text never reaches `eval`: only names, integers and the operators above are read.
"""

import re

from .dim import Dim, ceildiv, floordiv, maximum, minimum, mod, symbol
from .errors import ParseError, shown

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),]))")
_FUNCTIONS = {"min": minimum, "max": maximum, "ceildiv": ceildiv}
# What a dim of a real model never comes near: it nests under 10 deep and has some tens of terms.
# Text beyond is hostile: products of sums grow without bound.
MAX_NESTING, MAX_TERMS, MAX_LENGTH = 64, 1000, 20_000


def parse_dim(text: str) -> Dim:
    """Read a dim as `str` prints it. Raises ParseError with the column."""
    parser = _Parser(text)
    dim = parser.sum()
    parser.expect_end()
    return dim


class _Parser:
    def __init__(self, text: str):
        self.text, self.at, self.depth = text, 0, 0
        self.tokens: list[tuple[str, int]] = []
        if len(text) > MAX_LENGTH:
            raise self.error(f"text of more than {MAX_LENGTH} characters", 0)
        end = len(text.rstrip())
        while self.at < end:
            match = _TOKEN.match(text, self.at)
            if match is None:
                raise self.error("unexpected character", self.at)
            self.tokens.append((match.group().strip(), match.start() + 1))
            self.at = match.end()
        self.index = 0

    def error(self, what: str, column: int) -> ParseError:
        return ParseError(f"dim {shown(self.text)}: {what} at column {column + 1}")

    def peek(self) -> str:
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            column = self.tokens[self.index][1] if token else len(self.text)
            raise self.error(f"expected {expected or 'a dim'}, found {token or 'the end'}", column)
        self.index += 1
        return token

    def expect_end(self) -> None:
        if self.peek():
            raise self.error(f"unexpected {self.peek()!r}", self.tokens[self.index][1])

    def sum(self) -> Dim:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"nested deeper than {MAX_NESTING}", 0)
        negative = self.peek() == "-"
        if negative:
            self.take()
        total = self.product()
        total = -total if negative else total
        while self.peek() in ("+", "-"):
            minus = self.take() == "-"
            term = self.product()
            total = total - term if minus else total + term
            if _terms(total) > MAX_TERMS:
                raise self.error(f"a sum of more than {MAX_TERMS} terms", 0)
        self.depth -= 1
        return total

    def product(self) -> Dim:
        total, divisions = self.atom(), 0
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            factor = self.atom()
            if operator != "*" and factor == 0:
                raise self.error("division by zero", 0)
            divisions += operator != "*"  # each nests what is before it
            if divisions > MAX_NESTING:
                raise self.error(f"nested deeper than {MAX_NESTING}", 0)
            if operator == "*":
                if _terms(total) * _terms(factor) > MAX_TERMS:
                    raise self.error(f"a product of more than {MAX_TERMS} terms", 0)
                total = total * factor
            else:
                total = floordiv(total, factor) if operator == "//" else mod(total, factor)
        return total

    def atom(self) -> Dim:
        token = self.take()
        if token.isdigit():
            if len(token) > 18:
                raise self.error("a number over 18 digits", 0)
            return int(token)
        if token == "(":
            inner = self.sum()
            self.take(")")
            return inner
        if token in _FUNCTIONS:
            self.take("(")
            a = self.sum()
            self.take(",")
            b = self.sum()
            self.take(")")
            return _FUNCTIONS[token](a, b)
        if token.isidentifier():
            return symbol(token)
        raise self.error(f"unexpected {token!r}", self.tokens[self.index - 1][1])


def _terms(dim: Dim) -> int:
    return 1 if isinstance(dim, int) else len(dim.terms)
