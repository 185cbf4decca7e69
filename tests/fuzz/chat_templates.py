"""Chat templates as somebody might write them who means harm, and real ones with damage."""

import inspect
import random
import re
from pathlib import Path

from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from tilewright.runtime.engine import chat_template as rendering

from ..runtime.chat_families import FAMILIES
from ..runtime.conftest import byte_tokenizer
from .check import Check, refused
from .mutate import damaged_value

MAX_SECONDS = 0.05  # that a template may take here
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Ça va? <|im_end|>"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1]}}}]},
    {"role": "tool", "content": "3"},
    {"role": "user", "content": [{"type": "text", "text": "So?"}]},
]
SETUP = (
    "{% set big = 'ab\\r ' * 499999 %}{% set wide = 'é' * 999999 %}{% set many = [0] * 9999 %}"
    "{% set same = range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) %}{% set ns = namespace(x='x') %}"
    "{% macro f(x) %}{{ x }}{% endmacro %}"
)
ATOMS = (
    "messages|messages[0].content|''|'x'|'a\\rb'|'%s'|'{}'|'{:999999999}'|'%(a(b))999999999d'|'ab'"
    "|1|0|-1|999999999|2 ** 61|1.5|none|true|[]|{}|[[1]]|{'a': 1}|range(99999)|big|wide|many|same"
    "|loop|self|caller|ns|ns.x|f|cycler(1, 2)|joiner('x')|dict|namespace|no|strftime_now|range"
    "|raise_exception|varargs|'idna'|'namereplace'|'%c'|'__class__'|'<!---->'|tools"
).split("|")
METHODS = sorted(
    {
        name
        for kind in (str, bytes, int, float, dict, list, tuple, range, type({}.keys()))
        for name in dir(kind)
        if not name.startswith("__") or name in ("__class__", "__init__", "__getattribute__")
    }
)
IS = [name for name in TESTS if name.isidentifier()]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"]
NAMED = sorted(
    {
        name
        for function in FILTERS.values()
        if inspect.isfunction(function)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }
)


def expression(rng: random.Random, depth: int) -> str:
    """A random expression, nested so deep at most."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(ATOMS)
    one = f"({expression(rng, depth - 1)})"

    def more() -> str:
        return expression(rng, depth - 1)

    def arguments() -> str:
        given = [more() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        if rng.random() < 0.3:
            given += [f"{name}={more()}" for name in rng.sample(NAMED, rng.choice([1, 2]))]
        return ", ".join(given)

    kind = rng.randrange(10)
    if kind < 3:
        return f"{one} | {rng.choice([*FILTERS, 'tojson'])}({arguments()})"
    if kind < 6:
        return f"{one}.{rng.choice(METHODS)}({arguments()})"
    if kind == 6:
        return f"{one} {rng.choice(OPERATORS)} ({more()})"
    if kind == 7:
        return f"{one} is {rng.choice(IS)}({arguments()})"
    if kind == 8:
        return rng.choice(["[{}, {}]", "({}, {})", "{{{}: {}}}", "dict([[{}, {}]])"]).format(
            one, more()
        )
    return f"{one}[{rng.choice(['', ':', '::'])}{more()}]"


def on_text(rng: random.Random) -> str:
    """A filter or a method with arguments that it may take: most random ones fail at once."""
    texts = ["big", "wide", "'x'", "'b' * 999 ~ 'a'", "wide[:9] ~ big", "'%s{}' * 99999", "same"]
    one, given = rng.choice(texts), [rng.choice([*texts, "99999", "3", "'a'"]) for _ in range(4)]
    given = ", ".join(given[: rng.randrange(4)])
    if rng.random() < 0.5:
        return f"({one}) | {rng.choice([*FILTERS, 'tojson'])}({given}) | string"
    return f"({one}).{rng.choice([name for name in dir(str) if name[0] != '_'])}({given})"


def statement(rng: random.Random, depth: int) -> str:
    """A random statement with what is inside it."""
    value = on_text(rng) if rng.random() < 0.5 else expression(rng, rng.choice([1, 2, 3]))
    inside = "".join(statement(rng, depth - 1) for _ in range(rng.choice([1, 2]) if depth else 0))
    return rng.choice(
        [
            "{{ V }}",
            "{{ V }}",
            "{% set x = V %}I",
            "{% set ns.x = V %}I",
            "{% set x %}I{% endset %}{{ x }}{{ V }}",
            "{% if V %}I{% else %}{{ V }}{% endif %}",
            "{% for x in V %}I{{ loop.length }}{% endfor %}",
            "{% for x in range(99999) %}{% set ns.x = V %}I{% endfor %}",
            "{% for x in V recursive %}I{{ loop(x) }}{% endfor %}",
            "{% macro g(x=V) %}I{{ g(x) }}{% endmacro %}{{ g() }}",
            "{% call(y) f(V) %}I{% endcall %}",
            "{% filter center(V) %}I{% endfilter %}",
            "{% generation %}I{{ V }}{% endgeneration %}",
            "{% block bN %}I{{ V }}{{ self.bN() }}{% endblock %}",
            "{% autoescape V %}I{{ V }}{% endautoescape %}",
            "{% include V %}",
        ]
    ).replace("I", inside).replace("V", value).replace("N", str(rng.randrange(99)))  # fmt: skip


def damaged_text(text: str, rng: random.Random) -> str:
    """A real template with words of it missing, doubled, exchanged or replaced."""
    words = re.findall(r"\{[%{]-?|-?[%}]\}|\w+|\s+|.", text)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, kind = rng.randrange(len(words)), rng.randrange(5)
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] += words[rng.randrange(len(words))]
        elif kind == 2:
            words[at] = f"({expression(rng, 2)})"
        elif kind == 3:
            words[at] = statement(rng, 1)
        else:
            words[at : at + 9] = words[at : at + 9] * rng.choice([2, 200])
    return "".join(words)


def chat_template(folder: Path) -> Check:
    """Rendered with messages and tools that are damaged too."""
    tokenizer = byte_tokenizer()
    rendering.MAX_SECONDS = MAX_SECONDS

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        if rng.random() < 0.7:
            text = SETUP + "".join(statement(rng, 2) for _ in range(rng.choice([1, 3])))
        else:
            text = damaged_text(FAMILIES[rng.choice(list(FAMILIES))], rng)
        messages = damaged_value(MESSAGES, rng) if rng.random() < 0.3 else MESSAGES
        tools = damaged_value([{"function": {"name": "f"}}], rng) if rng.random() < 0.3 else None
        return refused(
            lambda: tokenizer.encode_chat(
                messages,
                chat_template=text,
                tools=tools,
                max_tokens=1000,
                sanitize_control_tokens=rng.random() < 0.2,
            )
        )

    return check
