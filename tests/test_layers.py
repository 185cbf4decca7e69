"""Who may import whom: the import table of docs/architecture.md, held against every import.

Imports inside functions count too, since moving one there hides a cycle and does not remove it.
Every file is read as text; none is imported.
"""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EVERYTHING = {"ir", "frontend", "passes", "codegen", "runtime", "autotune", "api", "cli"}

# layer -> our own layers that it may import; "" is the root package
MAY_IMPORT = {
    "ir": {"ir"},
    "frontend": {"ir", "frontend"},
    "passes": {"ir", "passes"},
    "codegen": {"ir", "codegen"},
    "runtime": {"ir", "runtime"},
    "autotune": {"ir", "codegen", "runtime", "autotune"},
    "api": EVERYTHING - {"cli"} | {""},
    "cli": EVERYTHING | {""},
    "": EVERYTHING,
}

# library -> layers that may import it at all
MAY_USE = {
    "torch": {"frontend", "api", "cli"},
    "transformers": {"frontend", "api", "cli"},
    "accelerate": {"frontend"},
    "gguf": {"frontend", "api", "cli"},
    "triton": {"codegen", "api", "cli"},
    "sympy": {"frontend"},
    "onnx": {"frontend"},
    "cuda": {"runtime", "api", "cli"},
    "typer": {"cli"},
    "rich": {"cli"},
    "optuna": {"autotune"},
    "ray": {"autotune"},
}

# Modules that are loaded for one purpose only, and may import its library when they are.
# behind `tilewright.compile`, which takes a torch module
_COMPILE = ("compile_module", "compiled_module", "dynamo_backend", "arguments", "snapshot")
_VERIFY = ("bisect", "verify_graph", "verify_language_model", "verify_module", "verify_onnx")
LOADED_FOR = {f"api/{name}.py": "torch" for name in (*_COMPILE, "verify_module")}

# Files of api that compile; the rest runs what is compiled, without what compiles.
COMPILES = {
    *_COMPILE,
    *_VERIFY,
    "compile_graph",
    "compile_onnx",
    "compiled_variant",
    "watching",
    "token_scores",
    "tune_model",
}

# library -> layers that may import it at module level; the rest do so inside functions
MAY_USE_AT_TOP = {
    "torch": {"frontend"},
    "transformers": {"frontend"},
    "accelerate": set(),
    "gguf": set(),
    "triton": set(),
    "sympy": {"frontend"},
    "onnx": {"frontend"},
    "cuda": set(),
    "typer": {"cli"},
    "rich": {"cli"},
    "optuna": set(),
    "ray": set(),
}

# Circles that exist for convenience and are broken by an import inside a function.
PERMITTED_CIRCLES = {
    ("tilewright.ir.graph", "tilewright.ir.text"),  # str(graph) is the graph's text
}


@dataclass(frozen=True)
class Import:
    """One imported module: `target` is dotted; ours begins with 'tilewright'."""

    file: Path
    line: int
    target: str
    top: bool  # runs when the file is imported

    def __str__(self):
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.target}"

    @property
    def layer(self) -> str:
        parts = self.file.relative_to(ROOT).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def ours(self) -> bool:
        return self.target.split(".")[0] == "tilewright"


def package_files() -> list[Path]:
    """Every file that is shipped: the root's `__init__.py` and all below the layers."""
    below = [file for layer in sorted(EVERYTHING) for file in sorted((ROOT / layer).rglob("*.py"))]
    return [ROOT / "__init__.py", *below]


def dotted(file: Path) -> str:
    """ir/ops/__init__.py -> tilewright.ir.ops"""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("tilewright", *(part for part in parts if part != "__init__")))


def targets(node: ast.Import | ast.ImportFrom, file: Path, modules: set[str]) -> list[str]:
    """The dotted modules that one import statement names, relative ones resolved."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        package = dotted(file).split(".")
        if file.name != "__init__.py":
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)]
        assert package, f"{file}:{node.lineno} climbs above the package"
        base = ".".join([*package, base]) if base else ".".join(package)
    # `from ..ir import graph` names the module ir.graph where there is one, else ir itself
    return [
        f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
        for alias in node.names
    ]


def read_imports(file: Path, modules: set[str]) -> list[Import]:
    found = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in targets(node, file, modules):
                found.append(Import(file, node.lineno, target, top))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in [*node.body, *node.orelse]:
                visit(child, False)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                visit(child, top and not inside)

    visit(ast.parse(file.read_text(), str(file)), True)
    return found


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    files = package_files()
    modules = {dotted(file) for file in files}
    return [found for file in files for found in read_imports(file, modules)]


def test_layers_import_only_what_the_table_allows(imports):
    wrong = []
    for found in imports:
        if not found.ours:
            continue
        parts = found.target.split(".")
        layer = parts[1] if len(parts) > 1 and parts[1] in EVERYTHING else ""
        if layer not in MAY_IMPORT[found.layer]:
            wrong.append(
                f"{found}: {found.layer or 'the root'} may not import {layer or 'the root'}"
            )
    assert not wrong, "\n".join(wrong)


def test_libraries_are_used_only_where_the_table_allows(imports):
    wrong = []
    for found in imports:
        library = found.target.split(".")[0]
        if library not in MAY_USE:
            continue
        if found.layer not in MAY_USE[library]:
            wrong.append(f"{found}: {found.layer} may not use {library}")
        elif str(found).startswith(tuple(p for p, name in LOADED_FOR.items() if name == library)):
            continue
        elif found.top and found.layer not in MAY_USE_AT_TOP[library]:
            wrong.append(
                f"{found} when it is loaded: {found.layer} may do so only inside a function"
            )
    assert not wrong, "\n".join(wrong)


def test_what_runs_an_artifact_loads_nothing_that_compiles(imports):
    """Files of `api` that compile are imported by its others inside functions only."""
    wrong = [
        str(found)
        for found in imports
        if found.layer == "api" and found.top and found.ours and found.file.stem not in COMPILES
        if found.target.split(".")[1] in ("frontend", "passes", "codegen", "autotune")
        or found.target in {f"tilewright.api.{name}" for name in COMPILES}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_names_itself_only_relatively(imports):
    wrong = []
    for file in {found.file for found in imports}:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            wrong += [
                f"{file.relative_to(ROOT)}:{node.lineno} imports {name}"
                for name in names
                if name.split(".")[0] == "tilewright"
            ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_in_a_circle(imports):
    """Counts imports inside functions as well, so that moving one there is no way out."""
    after: dict[str, set[str]] = {}
    for found in imports:
        edge = (dotted(found.file), found.target)
        # the root loads its names lazily: it is above everything
        if found.ours and found.layer and edge not in PERMITTED_CIRCLES:
            after.setdefault(edge[0], set()).add(edge[1])
    cycle = find_cycle(after)
    assert cycle is None, " -> ".join(cycle)


def find_cycle(after: dict[str, set[str]]) -> list[str] | None:
    """One cycle of the graph as a path whose ends are equal, or None."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for following in sorted(after.get(node, ())):
            cycle = walk(following, [*path, node])
            if cycle:
                return cycle
        done.add(node)
        return None

    for start in sorted(after):
        cycle = walk(start, [])
        if cycle:
            return cycle
    return None


def test_the_reader_sees_what_it_should(tmp_path, monkeypatch):
    """The reader itself: relative levels, functions, TYPE_CHECKING, modules named by `from`."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "codegen" / "cpp" / "emit.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, torch.fx\n"
        "from ...ir import graph, Graph\n"
        "from . import loops\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ..plan import Plan\n"
        "def f():\n    import sympy\n"
    )
    modules = {"tilewright.ir", "tilewright.ir.graph", "tilewright.codegen.cpp.loops"}
    found = {(item.target, item.top) for item in read_imports(file, modules)}
    assert found == {
        ("os", True),
        ("torch.fx", True),
        ("tilewright.ir.graph", True),
        ("tilewright.ir", True),
        ("tilewright.codegen.cpp.loops", True),
        ("typing", True),
        ("tilewright.codegen.plan", False),
        ("sympy", False),
    }
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b"}, "b": {"c"}}) is None


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [
        ("tilewright", "torch sympy triton onnx transformers typer rich cuda"),
        ("tilewright.ir", "torch sympy triton onnx transformers"),
        ("tilewright.runtime", "torch sympy triton onnx transformers cuda"),
        ("tilewright.api", "torch sympy triton onnx transformers"),
        ("tilewright.cli", "torch sympy triton onnx transformers"),
    ],
)
def test_importing_loads_nothing_heavy(module, kept_out):
    code = f"import sys, {module}; print([m for m in {kept_out.split()!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_public_names_are_complete():
    """Each error class that a caller may want to catch is a public name of the package."""
    import tilewright
    from tilewright.ir import errors

    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    classes = {name for name, value in found.items() if issubclass(value, errors.TilewrightError)}
    assert classes <= set(tilewright.__all__)
    assert classes <= set(dir(tilewright))
    assert all(getattr(tilewright, name) is getattr(errors, name) for name in classes)
    source = ast.parse((ROOT / "__init__.py").read_text())
    (guarded,) = (node for node in source.body if isinstance(node, ast.If))
    for_editors = {alias.name for node in guarded.body for alias in node.names}
    assert for_editors == set(tilewright.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'complie'"):
        _ = tilewright.complie
