"""Which nodes become one kernel, and where in memory values lie between kernels."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ir import switches
from ...ir.graph import Graph
from ...ir.plan import Plan
from ...ir.report import Findings, PassReport, Report
from ...ir.target import TARGETS, Target
from ...ir.verify import verify
from .partition import partition
from .plan_memory import plan_memory

log = logging.getLogger("tilewright.codegen")


def make_plan(
    graph: Graph,
    report: Report | None = None,
    *,
    target: Target = TARGETS["cpu"],
    late: frozenset[str] = frozenset(),
) -> Plan:
    """The plan of a graph on `target`: groups, each one kernel, and the memory between them.

    `report` is given what each of the two steps did: groups that joined and that did not, and why.
    `late` as in Plan.
    """
    report = Report() if report is None else report
    grouped = _reported(report, "partition", lambda g, found: partition(g, found, target), graph)
    if int(switches.get("check")):
        verify(grouped.graph)
    return _reported(report, "plan-memory", plan_memory, replace(grouped, late=late))


def _reported(
    report: Report, name: str, step: Callable[[Any, Findings], Plan], before: Any
) -> Plan:
    findings = Findings()
    start = time.perf_counter()
    plan = step(before, findings)
    seconds = time.perf_counter() - start
    count = len(plan.graph.nodes)
    report.passes.append(PassReport(name, plan is not before, seconds, count, findings))
    log.info("%s: %d groups in %.1f ms", name, len(plan.groups), seconds * 1e3)
    return plan


__all__ = ["make_plan", "partition", "plan_memory"]
