"""Every environment switch, in one typed table; each is also a scoped Python context.

Nothing else in the project reads the environment for its behaviour.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import OptionError

PREFIX = "TILEWRIGHT_"
MAX_INT = 1024  # the largest number a switch may have: of threads, more cannot be started
LOG_TOPICS = ("passes", "codegen", "cache", "runtime", "engine")


@dataclass(frozen=True)
class Switch:
    """A switch: `TILEWRIGHT_<NAME>` in the environment, `<name>=` in `switches(...)`."""

    name: str
    kind: str  # path | int | choice | list | text
    default: Any
    doc: str
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.name.upper()}"


TABLE = (
    Switch(
        "dump",
        "path",
        None,
        "Write the graph after each pass that changed it, numbered, and each kernel's source, to"
        " this folder.",
    ),
    Switch(
        "check",
        "choice",
        "0",
        "0: off. 1: verify after each pass. 2: also run the reference after each pass and name the"
        " first that moved numbers.",
        ("0", "1", "2"),
    ),
    Switch("stop_after", "text", None, "Stop the pipeline after this pass."),
    Switch(
        "log",
        "list",
        (),
        f"Topics to log, comma separated: {', '.join(LOG_TOPICS)}.",
        LOG_TOPICS,
    ),
    Switch(
        "cache",
        "path",
        None,
        "Where compiled artifacts are kept. Default: $XDG_CACHE_HOME/tilewright or"
        " ~/.cache/tilewright.",
    ),
    Switch(
        "records",
        "text",
        None,
        "The file of tuning records that programs are built with; `none`: the default schedules."
        " Default: records.sqlite beside the compiled artifacts.",
    ),
    Switch(
        "threads",
        "int",
        None,
        "CPU threads that kernels use. Default: this process's cores, or one for little work.",
    ),
    Switch(
        "cxx",
        "text",
        None,
        "The C++ compiler, its words split as by a shell: 'ccache g++'. Default: the first of g++,"
        " clang++, c++ found.",
    ),
    Switch(
        "debug", "choice", "0", "1: errors carry their traceback on the command line.", ("0", "1")
    ),
)

_BY_NAME = {s.name: s for s in TABLE}
_NONE: Mapping[str, Any] = MappingProxyType({})
_scoped: ContextVar[Mapping[str, Any]] = ContextVar("switches", default=_NONE)


def get(name: str) -> Any:
    """The switch's value: the innermost `switches(...)`, else the environment, else the default."""
    switch = _BY_NAME[name]
    scoped = _scoped.get()
    if name in scoped:
        return scoped[name]
    text = os.environ.get(switch.variable)
    return switch.default if text is None or text == "" else _parse(switch, text)


def check() -> None:
    """Read every switch, so that a bad value is an error now and not in the middle of the work."""
    for switch in TABLE:
        get(switch.name)
    known = {switch.variable for switch in TABLE}
    unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and n not in known)
    if unknown:
        raise OptionError(
            f"no switch named {', '.join(unknown)}",
            facts=f"switches: {', '.join(switch.variable for switch in TABLE)}",
            fix="correct its name, or unset it",
        )


@contextmanager
def switches(**values: Any) -> Iterator[None]:
    """Scoped override: `with switches(check="2", dump="out"):`. OptionError on an unknown name."""
    checked = dict(_scoped.get())
    for name, value in values.items():
        if name not in _BY_NAME:
            raise OptionError(f"no switch named {name!r}", facts=f"switches: {', '.join(_BY_NAME)}")
        checked[name] = value if value is None else _parse(_BY_NAME[name], _as_text(value))
    token = _scoped.set(checked)
    try:
        yield
    finally:
        _scoped.reset(token)


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _parse(switch: Switch, text: str) -> Any:
    if switch.kind == "path":
        return Path(text).expanduser()
    if switch.kind == "int":
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_INT:
            raise OptionError(
                f"{switch.variable}={text!r} is not a positive number",
                facts=f"it is a whole number from 1 to {MAX_INT}",
            )
        return int(text)
    parts = tuple(p.strip() for p in text.split(",")) if switch.kind == "list" else (text,)
    for part in parts:
        if switch.choices and part not in switch.choices:
            raise OptionError(
                f"{switch.variable}={text!r}: {part!r} is not a choice",
                facts=f"choices: {', '.join(switch.choices)}",
            )
    return parts if switch.kind == "list" else text
