"""A chat template: Jinja as transformers runs it, in a sandbox that bounds time and memory too."""

import functools
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.runtime import Context, Markup
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from . import template_budget as limits

MAX_TEMPLATE_CHARS = 1 << 18  # of the template's own text


class TemplateFailed(Exception):  # not an error of ours: the caller makes one of it
    """A template cannot be read, refused its messages, or used up its budget."""


class ChatTemplate:
    """A template's text, compiled. `render` may be called by several threads at once.

    Raises `TemplateFailed`, as `render` does.
    """

    def __init__(self, text: str):
        if len(text) > MAX_TEMPLATE_CHARS:
            raise TemplateFailed(f"it has {len(text):,} characters, more than any template needs")
        self._environment = _Sandbox()
        with limits.budget():
            self._compiled = _run(self._environment.from_string, text)
            tree = _run(self._environment.parse, text)
        self.loops_over_parts = _loops_over_parts(tree)
        self.literals = tuple(
            [n.data for n in tree.find_all(nodes.TemplateData)]
            + [n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)]
        )

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for `variables`, which are plain data without cycles."""
        with limits.budget() as budget:
            given = {name: budget.given(value) for name, value in variables.items()}
            return _run(self._compiled.render, given)


def _run(function: Callable[..., Any], *args: Any) -> Any:
    # a template is a program of somebody else's: whatever it raises is the template's failure
    try:
        return function(*args)
    except limits.TooMuch as error:
        raise TemplateFailed(f"it takes too much: {error}") from None
    except RecursionError:
        raise TemplateFailed("it takes too much: it calls itself, or nests too deep") from None
    except MemoryError:
        raise TemplateFailed("it takes too much memory") from None
    except jinja2.TemplateError as error:
        raise TemplateFailed(str(error)) from error
    except Exception as error:
        raise TemplateFailed(f"{type(error).__name__}: {error}") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which all that grows or repeats is counted."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            optimized=False,  # nothing is computed before there is a budget
            finalize=_charge_output,
        )
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = _metered(name, function)
        for name, function in list(self.tests.items()):
            self.tests[name] = _metered(f"is {name}", function)
        # not names that a template could write: see _Metered
        self.filters[_LOOP] = limits.counted
        self.filters[_MADE] = lambda value: limits.current().charge(value)
        self.filters[_CONCAT] = _concat_values
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.globals["namespace"] = _Namespace

    def _parse(self, *args: Any) -> nodes.Template:
        return _Metered().visit(super()._parse(*args))

    @staticmethod
    def concat(pieces: Any) -> str:
        """Of the pieces that a template, a macro or a block has put out."""
        kept, budget = [], limits.current()
        for piece in pieces:
            budget.charge(piece)
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits.need_for_operator(operator, left, right)
        return limits.current().charge(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
        # the double prefixes: `self` and `context` may be names of arguments
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            limits.need_for_call(__obj.__name__, (owner, *args), named)
        return limits.current().charge(super().call(__context, __obj, *args, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        formatter = (
            _EscapeFormatter(self, escape=text.escape)
            if isinstance(text, Markup)
            else _Formatter(self)
        )
        if value.__name__ == "format_map":
            return lambda mapping: type(text)(formatter.vformat(text, (), mapping))
        return lambda *args, **named: type(text)(formatter.vformat(text, args, named))


class _Metered(NodeTransformer):
    """Puts a filter around what no hook of the environment sees: loops, literals, slices, `~`.

    Jinja finds the methods by the names of its nodes.
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        node = self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP)
        return node

    def visit_List(self, node: nodes.Expr) -> nodes.Expr:  # noqa: N802
        return _filtered(self.generic_visit(node), _MADE)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        node = self.generic_visit(node)
        return _filtered(node, _MADE) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        node = self.generic_visit(node)
        return _filtered(node, _MADE) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        node = self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)


_LOOP, _MADE, _CONCAT = "each of", "made", "joined by ~"


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _concat_values(values: list[Any]) -> str:
    budget = limits.current()
    for value in values:
        budget.need(budget.size(value))
    return budget.charge("".join(map(str, values)))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter or test, counted. It may take Jinja's context before its value."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **named: Any) -> Any:
        if name in ("join", "sum") and len(args) > first and not hasattr(args[first], "__len__"):
            values = limits.current().charge(list(args[first]))
            args = (*args[:first], values, *args[first + 1 :])
        if name == "format" and isinstance(args[first], str):
            limits.need_for_percent(args[first], args[first + 1 :] or named)
        limits.need_for_call(name, args[first:], named)
        return limits.current().charge(function(*args, **named))

    return metered


@pass_context  # so that Jinja finalizes nothing while it compiles
def _charge_output(_: Context, value: Any) -> Any:
    if not isinstance(value, str):
        budget = limits.current()
        budget.need(budget.size(value))
    return value


class _CountsFields:
    """str.format, field by field."""

    def format_field(self, value: Any, spec: str) -> str:
        budget = limits.current()
        limits.need_for_format(spec)
        budget.need(budget.size(value))
        return budget.charge(super().format_field(value, spec))  # type: ignore[misc]


class _Formatter(_CountsFields, SandboxedFormatter): ...


class _EscapeFormatter(_CountsFields, SandboxedEscapeFormatter): ...


class _Namespace(Namespace):
    """Jinja's namespace, without what it holds in its text: it may hold itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which a prompt must not have
    options: dict[str, Any] = {"ensure_ascii": ensure_ascii, "sort_keys": sort_keys}
    budget = limits.current()
    budget.need(budget.size(value))
    if indent is None and separators is None:
        return json.dumps(value, **options)
    if indent is not None:
        budget.need(limits.MAX_DEPTH * (indent if isinstance(indent, int) else len(indent)))
    encoder = json.JSONEncoder(**options, indent=indent, separators=separators)
    return "".join(map(budget.charge, encoder.iterencode(value)))


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the reply for training: here, its body."""

    tags = {"generation"}  # the name and kind that Jinja looks for

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _loops_over_parts(tree: nodes.Template) -> bool:
    """Whether a template has a loop over a message's content, or over a name given to it."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
            names.add(assign.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
