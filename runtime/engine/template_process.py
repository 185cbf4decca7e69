"""The process that renders chat templates: Jinja as transformers runs it, within limits.

Started by `chat_template.py` as a program of its own, it imports nothing of ours. Where a template
takes more time than it may, the system ends the process; more memory it does not get.
"""

import json
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from marshal import loads
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_MESSAGE_CHARS = 500  # of a failure, which the template may have written


def main() -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whatever the other process does with it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    requests = Connection(int(sys.argv[1]))
    while True:
        try:
            seconds, more_bytes, max_chars, text, given = loads(requests.recv_bytes())
        except EOFError:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + more_bytes
        room = room if most == resource.RLIM_INFINITY else min(room, most)
        resource.setrlimit(resource.RLIMIT_AS, (room, most))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of processor time; its signal ends us
        answer = _answer(text, loads(given), max_chars)
        signal.setitimer(signal.ITIMER_PROF, 0)
        requests.send_bytes(answer)


def _answer(text: str, variables: Mapping[str, Any] | None, max_chars: int) -> bytes:
    """T and what the template makes of `variables`, or without them its facts; F and why not."""
    # a template is a program of somebody else's: whatever it raises is the template's failure
    try:
        template, facts = _compiled(text)
        made = facts if variables is None else template.render(variables)
        if len(made) <= max_chars:
            return b"T" + made.encode("utf-8", "surrogatepass")
        failure = f"it takes too much: it makes more than {max_chars:,} characters"
    except RecursionError:
        failure = "it takes too much: it calls itself, or nests too deep"
    except MemoryError:
        failure = "it takes too much memory"
    except jinja2.TemplateError as error:
        failure = str(error)
    except Exception as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}"
    return b"F" + failure[:MAX_MESSAGE_CHARS].encode("utf-8", "surrogatepass")


@lru_cache(maxsize=64)
def _compiled(text: str) -> tuple[jinja2.Template, str]:
    """A template, and as JSON whether it loops over parts, and the texts that it writes itself."""
    environment = _environment()
    tree = environment.parse(text)
    literals = [n.data for n in tree.find_all(nodes.TemplateData)]
    literals += [n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)]
    return environment.from_string(text), json.dumps([_loops_over_parts(tree), literals])


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


class _Dict:
    """The name `dict`: as in transformers not the type, whose methods would change dicts."""

    __call__ = staticmethod(dict)
    fromkeys = staticmethod(dict.fromkeys)


class _Namespace(Namespace):
    """Jinja's namespace, with transformers' rule for names.

    It takes `self` as a name too, and so has none of its own.
    """

    def __init__(*args: Any, **named: Any) -> None:
        attributes = dict(*args[1:], **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace takes no name that begins with _: {name!r}")


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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


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


if __name__ == "__main__":
    main()
