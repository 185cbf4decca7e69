"""Runs pipelines: passes in order, each verified, dumped, timed and reported."""

import logging
import time
import typing
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar

from ..ir import switches
from ..ir.errors import ParseError, PassError, VerifyError
from ..ir.graph import Graph
from ..ir.layout import KVLayout
from ..ir.parse import parse_attr, split_top
from ..ir.progress import Progress, unwatched
from ..ir.report import PassReport, Report
from ..ir.text import format_attr, print_graph
from ..ir.verify import verify
from .differential import Differential
from .findings import collect
from .rewrite import map_regions

log = logging.getLogger("tilewright.passes")

_REGISTRY: dict[str, type["Pass"]] = {}


@dataclass(frozen=True)
class Outcome:
    """What one pass makes: the rewritten graph, and what it took out of it (see PassResult)."""

    graph: Graph
    prepare: Graph | None = None
    kv: KVLayout | None = None


@dataclass(frozen=True)
class Pass:
    """A rewrite of graphs. A subclass is a frozen dataclass; its fields are the pass's options.

    It defines `run`, or `outcome` where it makes more than a graph. Neither changes what it got,
    and each returns the same graph when it has nothing to do.
    """

    name: ClassVar[str] = ""
    # passes that change what a graph takes or returns cannot be compared by running both
    keeps_signature: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if cls.name:
            if _REGISTRY.setdefault(cls.name, cls).__qualname__ != cls.__qualname__:
                raise TypeError(f"two passes are called {cls.name}")
            _REGISTRY[cls.name] = cls

    def run(self, graph: Graph) -> Graph:
        """The rewritten graph."""
        raise NotImplementedError

    def outcome(self, graph: Graph) -> Outcome:
        """The rewritten graph, and what else comes of it."""
        return Outcome(self.run_within(graph))

    def run_within(self, graph: Graph) -> Graph:
        """`run` on the sub-graphs, the innermost first, and then on the graph."""
        if self.keeps_signature:
            graph = map_regions(graph, self.run_within)
        return self.run(graph)

    def __str__(self) -> str:
        shown = [
            f"{f.name}={_format(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.name + (f"{{{', '.join(shown)}}}" if shown else "")


def _format(value: Any) -> str:
    return value if isinstance(value, str) else format_attr(value)


@dataclass(frozen=True)
class PassResult:
    """The graph after a pipeline, and what passes made on the way."""

    graph: Graph
    report: Report
    # computes the values of `graph.weights`, in order, from the original weights; None: they are
    # the original ones
    prepare: Graph | None = None
    kv: KVLayout | None = None  # how page-kv laid out the cache


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    check: int | None = None,
    dump: Path | None = None,
    stop_after: str | None = None,
    progress: Progress = unwatched,
    differential: Differential | None = None,
) -> PassResult:
    """Run `passes` in order. What is not given of the next three is taken from the switches.

    check 1 verifies after each pass; check 2 also runs the reference on small random inputs before
    and after each pass, and names the first pass whose numbers moved. `differential` does that on
    inputs of its own.
    """
    check = int(switches.get("check")) if check is None else check
    dump = switches.get("dump") if dump is None else dump
    stop_after = switches.get("stop_after") if stop_after is None else stop_after
    if stop_after is not None and stop_after not in {p.name for p in passes}:
        raise PassError(
            f"cannot stop after {stop_after!r}: it is not in this pipeline",
            facts=f"passes: {', '.join(p.name for p in passes)}",
        )
    report = Report()
    products: dict[str, Any] = {}
    if check:
        verify(graph)
    if differential is None and check == 2:
        differential = Differential(graph)
    if dump is not None:
        _write(dump / "00-input.ir", graph)
    for number, each in enumerate(passes, 1):
        progress("optimize", number - 1, len(passes))
        start = time.perf_counter()
        with collect() as found:
            outcome = each.outcome(graph)
        after = outcome.graph
        seconds = time.perf_counter() - start
        changed = after is not graph
        report.passes.append(PassReport(each.name, changed, seconds, len(after.nodes), found))
        log.info("%s: %s in %.1f ms", each, "changed" if changed else "same", seconds * 1e3)
        for name in ("prepare", "kv"):
            if (made := getattr(outcome, name)) is not None:
                products[name] = made
        if changed and dump is not None:
            _write(dump / f"{number:02}-{each.name}.ir", after)
        if changed and check:
            _verify(after, each)
        if changed and differential is not None:
            differential.compare(after, str(each), each.keeps_signature, outcome.prepare)
        graph = after
        if each.name == stop_after:
            break
    return PassResult(graph, report, **products)


def _verify(graph: Graph, after: Pass) -> None:
    try:
        verify(graph)
    except VerifyError as error:
        raise VerifyError(
            f"after {after}: {error.what}", where=error.where, facts=error.facts, fix=error.fix
        ) from None


def _write(path: Path, graph: Graph) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(print_graph(graph, locs=True))


# ---- the registry and the text of pipelines --------------------------------------------------


def registry() -> dict[str, type[Pass]]:
    """Every pass by name. Complete once the package `passes` is imported."""
    return dict(sorted(_REGISTRY.items()))


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes of `a,b{k=1}`. ParseError or PassError says what is wrong with which part."""
    passes = tuple(_parse_pass(part) for part in split_top(text) if part)
    if not passes:
        raise ParseError("the pipeline names no pass", facts=f"text: {text!r}")
    return passes


def _parse_pass(text: str) -> Pass:
    name, brace, rest = text.partition("{")
    name = name.strip()
    if name not in _REGISTRY:
        from difflib import get_close_matches

        near = get_close_matches(name, _REGISTRY, n=3)
        raise PassError(
            f"no pass named {name!r}",
            facts=f"passes: {', '.join(sorted(_REGISTRY))}",
            fix=f"did you mean {' or '.join(near)}?" if near else "",
        )
    if brace and not rest.rstrip().endswith("}"):
        raise ParseError(f"pass {text!r}: {{ without }}")
    cls = _REGISTRY[name]
    known = {f.name: f for f in fields(cls)}
    hints = typing.get_type_hints(cls)
    options = {}
    for item in split_top(rest.rstrip().removesuffix("}")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise PassError(
                f"{name} has no option {key!r}", facts=f"options: {', '.join(known) or 'none'}"
            )
        try:
            options[key] = _parse_option(value, hints[key])
        except (ValueError, SyntaxError, ParseError) as error:
            raise PassError(f"option {key} of {name}: {error}") from None
    return cls(**options)


def _parse_option(text: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        if text == "None":
            return None
        (hint,) = (t for t in typing.get_args(hint) if t is not type(None))
    if hint is str:
        return text.strip("'\"")
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is str:
        if not (text.startswith("[") and text.endswith("]")):
            raise ValueError(f"{text!r} is not a list")
        return tuple(part.strip("'\"") for part in split_top(text[1:-1]))
    return parse_attr(text, hint)
