"""A built wheel holds every package and every file that it needs, and nothing else."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["ir", "frontend", "passes", "codegen", "runtime", "autotune", "api", "cli"]
NOT_SHIPPED = {"tests", "docs", "benchmarks", "examples"}
# Kinds of file that the package reads at run time, and so must be shipped.
SHIPPED = {".py", ".h", ".cpp", ".jsonl"}


def shipped_files() -> set[str]:
    """Paths that the wheel must hold, read off the tree."""
    files = {"tilewright/__init__.py", "tilewright/py.typed"}
    for layer in LAYERS:
        for file in (ROOT / layer).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert file.suffix in SHIPPED, (
                    f"{file}: say in pyproject.toml whether it is shipped"
                )
                files.add(f"tilewright/{file.relative_to(ROOT)}")
    return files


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_folder_with_code_is_a_listed_package(project):
    folders = {file.parent for layer in LAYERS for file in (ROOT / layer).rglob("*.py")}
    expected = {".".join(["tilewright", *folder.relative_to(ROOT).parts]) for folder in folders} | {
        "tilewright"
    }
    assert set(project["tool"]["setuptools"]["packages"]) == expected
    missing = [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]
    assert not missing, f"folders without __init__.py: {missing}"


def test_every_folder_of_the_repository_is_a_layer_or_known_not_to_be_shipped():
    folders = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith((".", "__")) and any(path.rglob("*.py"))
    }
    assert folders - {"build", "dist"} <= set(LAYERS) | NOT_SHIPPED


def test_every_dependency_is_pinned(project):
    """constraints.txt gives an exact version to each library we ask for by name."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, f"constraints.txt: not an exact version: {line}"
            pins[normal(name)] = version
    wanted = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["dev"]
    names = {normal(text.split(">")[0].split("<")[0].split("=")[0]) for text in wanted}
    assert names - pins.keys() == set()


def normal(name: str) -> str:
    return name.strip().lower().replace("-", "_")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy: of another name, and without what older builds left behind."""
    source = tmp_path_factory.mktemp("another-name")
    for name in ["__init__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, source / name)
    for name in [*LAYERS, "tests", "examples"]:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--quiet", "--wheel-dir", str(out), "."],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("tilewright-*.whl")
    return built


def test_the_wheel_holds_every_file_it_needs_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == shipped_files()


def test_the_wheel_works_where_it_is_unpacked(wheel, tmp_path):
    """What gets imported is the unpacked wheel and not this checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tilewright, tilewright.cli;"
        "print(tilewright.__file__, tilewright.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    file, version = done.stdout.split()
    assert Path(file) == tmp_path / "tilewright" / "__init__.py"
    assert wheel.name.startswith(f"tilewright-{version}-")


def test_the_command_is_declared(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "tilewright = tilewright.cli:main" in archive.read(entry).decode()
