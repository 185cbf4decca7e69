"""Runs the cases of `*.ir`: a graph, and its plan as text."""

from pathlib import Path

import pytest

from tilewright.codegen.group import partition, plan_memory
from tilewright.ir.parse import parse_graph
from tilewright.ir.report import Findings
from tilewright.ir.text import print_graph, print_plan

from ...passes.test_passes import read_cases, write

ALL = [case for path in sorted(Path(__file__).parent.glob("*.ir")) for case in read_cases(path)]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_case(case, update_golden):
    graph = parse_graph(case.before, path=f"{case.path.name}[{case.number}]")
    assert print_graph(graph) == case.before, "the graph is not written the way it prints"
    found = Findings()
    plan = partition(graph, found)
    if "plan-memory" in case.pipeline:
        plan = plan_memory(plan, found)
    text = print_plan(plan)
    actual = "unchanged\n" if text == case.before else text
    if update_golden and actual != case.expected:
        write(case, actual)
    else:
        assert actual == case.expected, found
    assert print_graph(parse_graph(text)) == print_graph(plan.graph)
