"""What passes report besides their graph: rules that fired or declined, notes, and by-products."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..ir.dim import Dim
from ..ir.graph import Graph
from ..ir.layout import KVLayout


@dataclass
class Findings:
    """Collected while one pass runs."""

    fired: Counter[str] = field(default_factory=Counter)
    declined: Counter[tuple[str, str]] = field(default_factory=Counter)  # (rule, reason)
    notes: list[str] = field(default_factory=list)
    prepare: Graph | None = None  # set by split-prepare
    kv: KVLayout | None = None  # set by page-kv
    arena_bytes: Dim | None = None  # set by plan-memory

    def fire(self, rule: str) -> None:
        """Count one application of `rule`."""
        self.fired[rule] += 1

    def decline(self, rule: str, reason: str) -> None:
        """Count one match that `rule` refused."""
        self.declined[rule, reason] += 1

    def note(self, text: str) -> None:
        """A line for the report."""
        self.notes.append(text)


_current: ContextVar[Findings | None] = ContextVar("findings", default=None)


def current() -> Findings:
    """Where the running pass reports; outside a pipeline, somewhere nobody looks."""
    found = _current.get()
    return Findings() if found is None else found


@contextmanager
def collect() -> Iterator[Findings]:
    """Findings of what runs inside."""
    findings = Findings()
    token = _current.set(findings)
    try:
        yield findings
    finally:
        _current.reset(token)
