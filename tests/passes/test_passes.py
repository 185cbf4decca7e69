"""Runs the cases of `*.ir`: a graph, and what a pass makes of it.

Four things are done with each case, so that its author writes two texts only: the text goes round
trip; the result is compared; both graphs are run with the reference at several sizes; and again
with small inputs, where a lost epsilon shows.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tilewright import passes
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph
from tilewright.passes import differential, random_inputs

FOLDER = Path(__file__).parent
CASES, PARTS = "=====\n", "-----\n"
TOLERANCE = 1e-9  # float64; rewrites reassociate at most


@dataclass(frozen=True)
class Case:
    """One case of a file: comment lines (the first names the passes), a graph, what is expected."""

    path: Path
    number: int
    comments: tuple[str, ...]
    before: str
    expected: str

    @property
    def pipeline(self) -> str:
        first = self.comments[0]
        assert first.startswith("# pass: "), f"{self.path.name}: a case begins with '# pass: ...'"
        return first.removeprefix("# pass: ")

    @property
    def title(self) -> str:
        return " ".join(c.removeprefix("# ") for c in self.comments[1:2])

    @property
    def id(self) -> str:
        return f"{self.path.stem}-{self.number}-{self.title.replace(' ', '_')}"

    def text(self, expected: str) -> str:
        return "\n".join(self.comments) + f"\n{self.before}{PARTS}{expected}"


def read_cases(path: Path) -> list[Case]:
    cases = []
    for number, text in enumerate(path.read_text().split(CASES)):
        before, _, expected = text.partition(PARTS)
        lines = before.splitlines(keepends=True)
        first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        comments = tuple(line.strip() for line in lines[:first])
        cases.append(Case(path, number, comments, "".join(lines[first:]), expected))
    return cases


ALL = [case for path in sorted(FOLDER.glob("*.ir")) for case in read_cases(path)]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_case(case, update_golden):
    graph = parse_graph(case.before, path=f"{case.path.name}[{case.number}]")
    assert print_graph(graph) == case.before, "the graph is not written the way it prints"
    result = passes.run(graph, case.pipeline, check=1)
    actual = "unchanged\n" if result.graph is graph else print_graph(result.graph)
    if update_golden and actual != case.expected:
        write(case, actual)
    else:
        assert actual == case.expected, str(result.report)
    if result.graph is not graph:
        assert print_graph(parse_graph(actual)) == actual
        if all(p.keeps_signature for p in passes.parse_pipeline(case.pipeline)):
            compare_numbers(graph, result)


def write(case: Case, actual: str) -> None:
    texts = case.path.read_text().split(CASES)
    texts[case.number] = case.text(actual)
    case.path.write_text(CASES.join(texts))


def compare_numbers(graph, result) -> None:
    weights = random_inputs.random_weights(graph, seed=1)
    after = weights
    if result.prepare is not None:
        after = differential.prepared(result.graph, result.prepare, weights)
    for binding in random_inputs.bindings(graph):
        for scale in differential.SCALES:
            arguments = random_inputs.random_arguments(graph, binding, scale, seed=2)
            expected = differential.run(graph, arguments, weights)
            actual = differential.run(result.graph, arguments, after)
            assert len(actual) == len(expected)
            for a, e in zip(actual, expected):
                assert differential.difference(a, e) <= TOLERANCE, (binding, scale)


def test_every_pass_has_cases():
    """A pass needs a case, and a near miss: one that it leaves as it is."""
    cases = {name: set() for name in passes.registry()}
    for case in ALL:
        name = passes.parse_pipeline(case.pipeline)[-1].name
        cases[name].add(case.expected == "unchanged\n")
    assert {name for name, kinds in cases.items() if False not in kinds} == set()
    # what changes a graph's signature does its work or refuses: that has tests of its own
    always = {name for name, cls in passes.registry().items() if not cls.keeps_signature}
    assert {name for name, kinds in cases.items() if True not in kinds} - always == set()


def test_update_writes_only_the_case_that_changed(tmp_path):
    graph = "graph @g\n  input %x : f32[2]\n{\n  return %x\n}\n"
    text = f"# pass: dead-code\n{graph}{PARTS}wrong\n"
    path = tmp_path / "two.ir"
    path.write_text(text + CASES + text.replace("wrong", "also wrong"))
    write(read_cases(path)[1], "unchanged\n")
    assert path.read_text() == text + CASES + text.replace("wrong", "unchanged")


def test_a_difference_is_relative_to_the_largest_magnitude():
    expected = np.array([1.0, -1000.0, np.nan, np.inf])
    assert differential.difference(expected.copy(), expected) == 0
    assert differential.difference(expected + [1, 0, 0, 0], expected) == 1e-3
    assert differential.difference(expected[:3], expected) == np.inf
    assert differential.difference(np.array([1.0, 2.0, 3.0, np.inf]), expected) == np.inf
