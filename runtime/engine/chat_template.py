"""A chat template: Jinja as transformers runs it, in a sandbox that bounds time and memory too."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, Markup, markup_join, str_join
from jinja2.sandbox import (
    ImmutableSandboxedEnvironment,
    SandboxedEscapeFormatter,
    SandboxedFormatter,
)
from jinja2.utils import Namespace, pass_context, pass_eval_context
from jinja2.visitor import NodeTransformer

from . import template_budget as limits
from . import template_costs as costs

MAX_TEMPLATE_CHARS = 1 << 16  # of the template's own text: several times the longest that is known
MAX_MESSAGE_CHARS = 500  # of a failure, which the template may have written


class TemplateFailed(Exception):  # not an error of ours: the caller makes one of it
    """A template cannot be read, refused its messages, or used up its budget."""


class ChatTemplate:
    """A template's text, compiled. `render` may be called by several threads at once.

    Raises `TemplateFailed`, as `render` does.
    """

    def __init__(self, text: str):
        if len(text) > MAX_TEMPLATE_CHARS:
            raise TemplateFailed(f"it has {len(text):,} characters, more than any template needs")
        with limits.budget():
            tree, self._compiled = _run(_compile, text)
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


def _compile(text: str) -> tuple[nodes.Template, jinja2.Template]:
    environment = _Sandbox()
    tree = environment.parse(text)
    code = environment.compile(tree)
    return tree, jinja2.Template.from_code(environment, code, environment.make_globals(None))


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
        raise TemplateFailed(str(error)[:MAX_MESSAGE_CHARS]) from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise TemplateFailed(text[:MAX_MESSAGE_CHARS]) from error


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
        self.filters[_STEP] = _step
        self.filters[_CONCAT] = _concat_values
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace

    def _parse(self, *args: Any) -> nodes.Template:
        return _Metered().visit(super()._parse(*args))

    @staticmethod
    def concat(pieces: Any) -> str:
        """Of the pieces that a template, a macro or a block has put out."""
        kept, budget = [], limits.current()
        for piece in pieces:
            budget.charge(piece)
            budget.spend(limits.SLOT_CHARS)
            kept.append(piece)
        return "".join(kept)

    def getitem(self, obj: Any, argument: Any) -> Any:
        limits.current().tick()
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        limits.current().tick()
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        costs.need_for_operator(operator, left, right)
        return limits.current().charge(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
        # the double prefixes: `self` and `context` may be names of arguments
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if args and isinstance(__obj, LoopContext):  # of a recursive loop
            args = (limits.counted(args[0]), *args[1:])
        elif args and owner is dict and name == "fromkeys":
            args = (costs.checked_keys(args[0]), *args[1:])
        elif owner is not None:
            if name == "join":
                args = tuple(map(_sized, args))
            given = {k: v for k, v in named.items() if k not in ("_loop_vars", "_block_vars")}
            costs.need_for_call(name, (owner, *args), given)
        return limits.current().charge(super().call(__context, __obj, *args, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        # each brace ends a piece
        limits.current().need((text.count("{") + text.count("}")) * limits.SLOT_CHARS)
        formatter = (
            _EscapeFormatter(self, escape=text.escape)
            if isinstance(text, Markup)
            else _Formatter(self)
        )
        if value.__name__ == "format_map":
            return lambda mapping: type(text)(formatter.vformat(text, (), mapping))
        return lambda *args, **named: type(text)(formatter.vformat(text, args, named))


class _Metered(NodeTransformer):
    """Puts a filter around what no hook of the environment sees: loops, literals, comparisons,
    slices, `~`.

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

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:  # noqa: N802
        return _filtered(self.generic_visit(node), _STEP)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        node = self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)


_LOOP, _MADE, _STEP, _CONCAT = "each of", "made", "looked at", "joined by ~"


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _step(value: Any) -> Any:
    limits.current().tick()
    return value


@pass_eval_context
def _concat_values(context: EvalContext, values: list[Any]) -> str:
    budget = limits.current()
    for value in values:
        budget.need(budget.size(value))
    join = markup_join if context.autoescape or context.volatile else str_join
    return budget.charge(join(values))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter or test, counted. It may take Jinja's context before its value."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **named: Any) -> Any:
        budget, (value, *more) = limits.current(), args[first:]
        if name in ("join", "sum"):
            value = _sized(value)
        elif name == "unique":  # it looks each value up in a set
            value = limits.counted(value)
        elif name == "format":
            budget.need(budget.size(value))
            value = value if isinstance(value, str) else str(value)  # escaped text stays so
            costs.need_for_percent(value, tuple(more) or named)
        costs.need_for_call(name, (value, *more), named)
        made = function(*args[:first], value, *more, **named)
        if isinstance(made, Iterator):
            made = limits.counted(made, limits.SLOT_CHARS)
        return budget.charge(made)

    return metered


def _sized(values: Any) -> Any:
    """The values, gathered where they come one by one."""
    return limits.current().charge(list(values)) if isinstance(values, Iterator) else values


@pass_context  # so that Jinja finalizes nothing while it compiles
def _charge_output(_: Context, value: Any) -> Any:
    budget = limits.current()
    budget.tick()
    if not isinstance(value, str):
        budget.need(budget.size(value))
    return value


class _CountsFields:
    """str.format, field by field."""

    def format_field(self, value: Any, spec: str) -> str:
        budget = limits.current()
        costs.need_for_format(spec)
        budget.need(budget.size(value))
        return budget.charge(super().format_field(value, spec))  # type: ignore[misc]


class _Formatter(_CountsFields, SandboxedFormatter): ...


class _EscapeFormatter(_CountsFields, SandboxedEscapeFormatter): ...


class _Dict:
    """The name `dict`: as in transformers not the type, whose methods would change dicts."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return _new_dict(*args, **named)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(costs.checked_keys(keys), value)


def _new_dict(*args: Any, **named: Any) -> dict[Any, Any]:
    if args and not isinstance(args[0], Mapping):
        args = (costs.checked_pairs(args[0]), *args[1:])
    return dict(*args, **named)


class _Namespace(Namespace):
    """Jinja's namespace, with transformers' rule for names, and without a text: it may hold itself.

    It takes `self` as a name too, and so has none of its own.
    """

    def __init__(*args: Any, **named: Any) -> None:
        attributes = _new_dict(*args[1:], **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        raise jinja2.TemplateError("a namespace is not written out")


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace takes no name that begins with _: {name!r}")


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(form: str) -> str:
    costs.need_for_call("strftime", (form,), {})
    return datetime.now().strftime(form)


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
    budget.need(budget.size(value) * (12 if ensure_ascii else 6))  # escapes
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
