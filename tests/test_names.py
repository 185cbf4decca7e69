"""No name means two things: a module's, or a public class's, is there once."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("ir", "frontend", "passes", "codegen", "runtime", "autotune", "api", "cli")

# Folders in which a name is that of one family of ops, or of one template, seen by each of them.
FAMILY = {
    "ir/ops", "frontend/aten", "frontend/nn", "frontend/onnx/ops",
    "codegen/templates", "codegen/cpp", "codegen/triton",
}  # fmt: skip

# Other names that are there several times, because they mean the same.
SAME = {
    "backend": "what is asked of a language, and the two that answer",
    "binary": "how each language's sources become binaries",
    "combine": "what a reduction does, and how each language prints it",
    "elements": "the walks over elements, and how each language prints them",
    "emit": "a kernel as the text of each language",
    "importer": "the walk over a graph of each front end",
}
SAME_CLASSES = {
    "Printer": "the functions that print a part, in each language's own terms",
    "Importer": "what imports the operations of a graph of each front end",
    "Call": "one operation that is being imported, in the terms of each front end",
}


def modules() -> dict[str, list[str]]:
    """Folders by the names of the modules in them."""
    found = defaultdict(list)
    for layer in LAYERS:
        for file in sorted((ROOT / layer).rglob("*.py")):
            if not file.name.startswith("__"):
                found[file.stem].append(file.parent.relative_to(ROOT).as_posix())
    return found


def public_classes() -> dict[str, list[str]]:
    """Files by the names of the public classes that they define."""
    found = defaultdict(list)
    for layer in LAYERS:
        for file in sorted((ROOT / layer).rglob("*.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(file.relative_to(ROOT).as_posix())
    return found


def test_a_module_name_means_one_thing():
    twice = {
        name: folders
        for name, folders in modules().items()
        if len(folders) > 1 and not FAMILY.issuperset(folders) and name not in SAME
    }
    assert twice == {}


def test_a_public_class_is_defined_once():
    twice = {
        name: files
        for name, files in public_classes().items()
        if len(files) > 1 and name not in SAME_CLASSES
    }
    assert twice == {}


@pytest.mark.parametrize(("found", "excused"), [(modules, SAME), (public_classes, SAME_CLASSES)])
def test_no_excuse_outlives_what_it_excuses(found, excused):
    assert [name for name in excused if len(found()[name]) < 2] == []
