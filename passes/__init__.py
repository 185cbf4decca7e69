"""Graph to graph: one pass a file, run by `manager`, put in order by `pipelines`.

Importing this package imports every file of the folder, which is what registers the passes.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from ..ir.graph import Graph
from .manager import Pass, PassResult, Report, parse_passes, registry, run_passes

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

from .pipelines import PIPELINES  # noqa: E402  after every pass is registered


def run(graph: Graph, pipeline: str | Sequence[Pass], **options: Any) -> PassResult:
    """Run a pipeline: its text, or passes. Options are those of `run_passes` (check, dump, ...)."""
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else tuple(pipeline)
    return run_passes(graph, passes, **options)


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Passes of `a,b{k=1}`, or of a named pipeline with its defaults."""
    return PIPELINES[text]() if text in PIPELINES else parse_passes(text)


__all__ = [
    "PIPELINES", "Pass", "PassResult", "Report", "parse_pipeline", "registry", "run", "run_passes",
]  # fmt: skip
