"""Where the running pass reports: rules that fired or declined, and notes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..ir.report import Findings

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
