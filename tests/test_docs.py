"""The documentation says what the code does: generated parts are current, links lead somewhere."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import tilewright
from tilewright.cli.app import VERBS
from tilewright.ir.parse import parse_graph
from tilewright.ir.text import print_graph
from tilewright.ir.types import DTYPES
from tilewright.ir.verify import verify
from tilewright.passes import manager, parse_pipeline, run_passes

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(generate):
    stale = [path.name for path, text in generate.pages().items() if path.read_text() != text]
    assert not stale, f"run `make docs`: {stale} differ from the code"


def test_first_sentence(generate, tmp_path):
    python = tmp_path / "a.py"
    python.write_text('"""One thing, `a.b` say. Another.\n\nMore."""\n')
    assert generate.first_sentence(python) == "One thing, `a.b` say."
    header = tmp_path / "a.h"
    header.write_text("// Vectors of floats,\n// portable.\n#pragma once\n")
    assert generate.first_sentence(header) == "Vectors of floats, portable."
    silent = tmp_path / "b.py"
    silent.write_text("x = 1\n")
    with pytest.raises(AssertionError, match="begin with a sentence on what the file is"):
        generate.first_sentence(silent)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_and_paths_lead_somewhere(page):
    """Relative links, and paths in code quotes that begin with one of our folders."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [
        link for link in links if link and "://" not in link and not (page.parent / link).exists()
    ]
    quoted = re.findall(
        r"`((?:ir|frontend|passes|codegen|runtime|api|cli|tests|docs)/[\w./]*)`", text
    )
    missing += [path for path in quoted if not (ROOT / path).exists()]
    assert not missing, f"{page.name} speaks of {missing}"


def test_graphs_in_the_documentation_are_graphs():
    """Each ```ir block parses, verifies, and prints as it stands there."""
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"```ir\n(.*?)```", page.read_text(), flags=re.DOTALL)
    ]
    assert blocks
    for name, block in blocks:
        graph = parse_graph(block, path=name)
        verify(graph)
        assert print_graph(graph) == block


def test_the_page_on_text_names_every_dtype():
    page = (ROOT / "docs" / "ir.md").read_text()
    listed = re.search(r"Dtypes: ([\w\s]+)\.", page)[1].split()
    assert listed == list(DTYPES)


def test_the_example_of_a_pass_works():
    """The code of docs/adding_a_pass.md, run as if it were a file of passes/."""
    page = (ROOT / "docs" / "adding_a_pass.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1]
    names = {"__package__": "tilewright.passes", "__name__": "tilewright.passes.fuse_silu"}
    try:
        exec(code, names)
        before = "graph @g\n  input %x : f32[4]\n{{\n{}  return %{}\n}}\n"
        sigmoid = "  %0 = sigmoid(%x) : f32[4]\n"
        graph = parse_graph(before.format(sigmoid + "  %1 = mul(%0, %x) : f32[4]\n", 1))
        result = run_passes(graph, parse_pipeline("fuse-silu"), check=2)
        assert print_graph(result.graph) == before.format("  %0 = silu(%x) : f32[4]\n", 0)
        assert result.report.fired == {"fuse-silu: written_out": 1}
    finally:
        manager._REGISTRY.pop("fuse-silu", None)


def test_readme_names_every_verb_and_only_public_names():
    text = (ROOT / "README.md").read_text()
    missing = [verb for verb in VERBS if f"`tilewright {verb}" not in text and verb != "demo"]
    assert missing == []
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "tilewright":
                assert {alias.name for alias in node.names} <= set(tilewright.__all__)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tilewright":
                assert node.attr in tilewright.__all__


def test_troubleshooting_names_errors_that_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"`([A-Z]\w+)(?::[^`]*)?`", page)
    errors = {name for name in quoted if not name.startswith("TILEWRIGHT_")}
    assert errors - {"InternalError"} <= set(tilewright.__all__)
    assert len(errors) > 10
