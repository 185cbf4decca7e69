"""Parser of the text of graphs: strict, and with the place of what it cannot read.

Types are always written; the parser infers them too and compares.
"""

import ast
import re
import types as _types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .builder import Builder
from .dim import Dim, Symbol
from .dim_text import parse_dim
from .errors import ParseError, TilewrightError
from .graph import Graph, Value
from .op import Op, get_op
from .types import DTYPES, DType, TensorType

SHOWN_COLUMNS = 120  # of the line that an error is in
MAX_DEPTH = 32  # of sub-graphs in one another

_DIM = re.compile(r"dim (\w+) in \[(\d+), ?(\d*)\](?: multiple (\d+))?(?: hint (\d+))?$")
_ARGUMENT = re.compile(r"(input|state) %(\w+) : (.+)$")
_WEIGHT = re.compile(r"weight %(\w+) ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\") : (.+)$")
_NODE = re.compile(r"(%[\w, %]+?) = (\w+)\(([^)]*)\)")
_UPDATE = re.compile(r"update %(\w+) = (%\w+)$")
_PLACE = re.compile(r" in \w+( at .+)?$")  # what a plan adds to a node
_TYPE = re.compile(r"(\w+)\[")


def parse_graph(text: str, *, path: str = "<text>") -> Graph:
    """The graph that `text` prints. Raises ParseError (file:line:column and a caret).

    Where `text` is that of a plan, its graph: groups and offsets are not read.
    """
    lines = [
        _Line(i, stripped)
        for i, line in enumerate(text.splitlines(), 1)
        if (stripped := _strip_comment(line).strip())
    ]
    parser = _GraphParser(path, lines)
    graph = parser.graph()
    if parser.at < len(lines):
        raise parser.error("text after the graph's end", lines[parser.at])
    return graph


@dataclass
class _Line:
    number: int
    text: str


class _GraphParser:
    """Reads the graph that begins at line `at`; `depth` counts the graphs that it lies in."""

    def __init__(self, path: str, lines: list[_Line], at: int = 0, depth: int = 0):
        self.path, self.lines, self.at, self.depth = path, lines, at, depth
        self.builder = Builder()
        self.values: dict[str, Value] = {}

    def graph(self, label: str = "") -> Graph:
        header = re.compile(rf"{re.escape(label)}graph @([\w.\-]+)$")
        self.builder.name = self.match(header, f"{label}graph @name").group(1)
        while self.peek() != "{":
            self.declaration()
        self.next()
        outputs = None
        while outputs is None:
            outputs = self.statement()
        self.match(re.compile(r"\}$"), "}")
        return self.builder.graph(outputs)

    def declaration(self) -> None:
        line = self.next()
        if match := _DIM.match(line.text):
            name, lo, hi, multiple, hint = match.groups()
            bounds = int(lo), int(hi) if hi else None
            self.builder.symbols[name] = Symbol(
                name, *bounds, int(multiple or 1), int(hint) if hint else None
            )
        elif match := _ARGUMENT.match(line.text):
            kind, name, type_text = match.groups()
            declare = self.builder.input if kind == "input" else self.builder.state
            type = self.type(type_text, line)
            self.define(f"%{name}", declare(name, type.shape, type.dtype), line)
        elif match := _WEIGHT.match(line.text):
            label, name, type_text = match.groups()
            type = self.type(type_text, line)
            value = self.builder.weight(ast.literal_eval(name), type.shape, type.dtype)
            self.define(f"%{label}", value, line)
        else:
            raise self.error("expected dim, input, weight, state or {", line)

    def statement(self) -> list[Value] | None:
        line = self.next()
        if line.text == "return" or line.text.startswith("return "):
            return [self.value(n.strip(), line) for n in line.text[7:].split(",") if n.strip()]
        if match := _UPDATE.match(line.text):
            self.builder.updates[match.group(1)] = self.value(match.group(2), line)
        else:
            self.node(line)
        return None

    def region(self, label: str, line: _Line) -> Graph:
        """A sub-graph of the node before: it has names of its own."""
        if self.depth == MAX_DEPTH:
            raise self.error(f"sub-graphs lie more than {MAX_DEPTH} deep in one another", line)
        inner = _GraphParser(self.path, self.lines, self.at, self.depth + 1)
        graph = inner.graph(f"{label} = ")
        self.at = inner.at
        return graph

    def node(self, line: _Line) -> None:
        match = _NODE.match(line.text)
        if match is None:
            raise self.error("expected: results = op(operands) {attributes} : types", line)
        results, op_name, operand_text = match.groups()
        op = self.guard(line, get_op, op_name)
        operands = tuple(self.value(n.strip(), line) for n in operand_text.split(",") if n.strip())
        rest = line.text[match.end() :].strip()
        attrs: dict[str, Any] = {}
        if rest.startswith("{"):
            close = _closing(rest)
            if close is None:
                raise self.error("{ without }", line, "{")
            attrs = self.attrs(op, rest[1:close], line)
            rest = rest[close + 1 :].strip()
        if not rest.startswith(":"):
            raise self.error("expected ': types'", line, rest[:1])
        type_text = _PLACE.sub("", rest[1:])
        for name, (annotation, _) in op.attrs.items():
            if annotation is Graph:
                attrs[name] = self.region(name, line)
        values = self.guard(line, self.builder.node, op, operands, attrs).results
        written = [self.type(t, line) for t in split_top(type_text)]
        if [value.type for value in values] != written:
            shown = ", ".join(str(value.type) for value in values)
            raise self.error(f"{op.name} gives {shown}, the text says {type_text.strip()}", line)
        labels = [r.strip() for r in results.split(",")]
        if len(labels) != len(values):
            raise self.error(f"{op.name} has {len(values)} results, {len(labels)} are named", line)
        for label, value in zip(labels, values):
            self.define(label, value, line)

    def attrs(self, op: Op, text: str, line: _Line) -> dict[str, Any]:
        result = {}
        for item in split_top(text):
            name, equals, value = item.partition("=")
            name = name.strip()
            if not equals or name not in op.attrs:
                raise self.error(f"{op.name} has no attribute {name!r}", line, name)
            try:
                result[name] = parse_attr(value.strip(), op.attrs[name][0])
            except (ValueError, SyntaxError, ParseError) as error:
                raise self.error(f"attribute {name}: {error}", line, value.strip()) from None
        return result

    def type(self, text: str, line: _Line) -> TensorType:
        try:
            return parse_type(text, lambda dim: self.guard(line, parse_dim, dim, near=dim))
        except ValueError as error:
            raise self.error(str(error), line, text.strip()) from None

    def value(self, name: str, line: _Line) -> Value:
        if name not in self.values:
            raise self.error(f"{name} is not defined before this line", line, name)
        return self.values[name]

    def define(self, name: str, value: Value, line: _Line) -> None:
        if name in self.values:
            raise self.error(f"{name} is defined twice", line, name)
        self.values[name] = value

    def guard(self, line: _Line, function, *args, near: str = ""):
        try:
            return function(*args)
        except TilewrightError as error:
            raise self.error(str(error), line, near) from None

    def peek(self) -> str:
        if self.at >= len(self.lines):
            raise self.error(
                "the text ends early", _Line(self.lines[-1].number if self.lines else 1, "")
            )
        return self.lines[self.at].text

    def next(self) -> _Line:
        self.peek()
        self.at += 1
        return self.lines[self.at - 1]

    def match(self, pattern: re.Pattern, expected: str) -> re.Match:
        line = self.next()
        found = pattern.match(line.text)
        if found is None:
            raise self.error(f"expected {expected}", line)
        return found

    def error(self, what: str, line: _Line, near: str = "") -> ParseError:
        column = max(line.text.find(near), 0) if near else 0
        # of a long line, what is around the place
        begin = max(0, column - SHOWN_COLUMNS // 2)
        shown = line.text[begin : begin + SHOWN_COLUMNS]
        return ParseError(
            what,
            where=f"{self.path}:{line.number}:{column + 1}",
            facts=f"{shown}\n{' ' * (column - begin)}^",
        )


def parse_attr(text: str, annotation: Any) -> Any:
    """One attribute of the declared type. ValueError, SyntaxError or ParseError when it is not."""
    if annotation is DType:
        if text not in DTYPES:
            raise ValueError(f"{text!r} is not a dtype ({', '.join(DTYPES)})")
        return DTYPES[text]
    if annotation == Dim:
        return parse_dim(text)
    if annotation is TensorType:
        return parse_type(text)
    if typing.get_origin(annotation) is tuple:
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(f"{text!r} is not a list")
        item = typing.get_args(annotation)[0]
        return tuple(parse_attr(part.strip(), item) for part in split_top(text[1:-1]))
    literal = _literal(text)
    allowed = (
        typing.get_args(annotation) if isinstance(annotation, _types.UnionType) else (annotation,)
    )
    if type(literal) is int and float in allowed and int not in allowed:
        literal = float(literal)
    if type(literal) not in allowed:
        raise ValueError(f"{text!r} is not of type {annotation}")
    return literal


def parse_type(text: str, read: Callable[[str], Dim] = parse_dim) -> TensorType:
    """The type that `text` prints. ValueError when it is none, ParseError for a bad dim."""
    text = text.strip()
    match = _TYPE.match(text)
    if match is None or not text.endswith("]") or match.group(1) not in DTYPES:
        raise ValueError(f"{text!r} is not a type such as f32[b, 64]")
    dims = split_top(text[match.end() : -1])
    return TensorType(tuple(map(read, dims)), DTYPES[match.group(1)])


def _literal(text: str) -> Any:
    if text.lstrip("-") in ("inf", "nan"):
        return float(text)
    return ast.literal_eval(text)


def split_top(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; empty text gives no parts."""
    parts, depth, start = [], 0, 0
    for i, c in _unquoted(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if parts or last else []


def _closing(text: str) -> int | None:
    """Where the brace closes that `text` begins with."""
    depth = 0
    for i, c in _unquoted(text):
        if c in "{}":
            depth += 1 if c == "{" else -1
            if depth == 0:
                return i
    return None


def _strip_comment(line: str) -> str:
    at = next((i for i, c in _unquoted(line) if c == "#"), None) if "#" in line else None
    return line[:at]


def _unquoted(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside quotes, with their places."""
    quote = ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        else:
            yield i, c
