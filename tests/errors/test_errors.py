"""Wrong graphs and the exact message each gives: `*.ir` holds the graph, then the message.

Messages are part of the interface: four parts (what, where, the facts that disagree, what to do),
seen here as a user sees them.
"""

from pathlib import Path

import pytest

from tilewright import passes
from tilewright.ir.errors import TilewrightError
from tilewright.ir.parse import parse_graph
from tilewright.ir.verify import verify

FOLDER = Path(__file__).parent
CASES, PARTS = "=====\n", "-----\n"


def read_cases():
    for path in sorted(FOLDER.glob("*.ir")):
        for number, text in enumerate(path.read_text().split(CASES)):
            title = text.splitlines()[0].removeprefix("# ")
            yield pytest.param(path, number, text, id=f"{path.stem}-{title.replace(' ', '_')}")


def message_of(text: str) -> str:
    """What happens to the graph: parsed, verified, and put through the passes it names."""
    named = [line for line in text.splitlines() if line.startswith("# pass: ")]
    try:
        graph = parse_graph(text, path="graph.ir")
        verify(graph)
        for line in named:
            passes.run(graph, line.removeprefix("# pass: "), check=1)
    except TilewrightError as error:
        return f"{error.kind}: {error}\n"
    raise AssertionError("nothing is wrong with this graph")


@pytest.mark.parametrize(("path", "number", "text"), list(read_cases()))
def test_message(path, number, text, update_golden):
    before, _, expected = text.partition(PARTS)
    actual = message_of(before)
    if update_golden and actual != expected:
        texts = path.read_text().split(CASES)
        texts[number] = before + PARTS + actual
        path.write_text(CASES.join(texts))
    else:
        assert actual == expected
