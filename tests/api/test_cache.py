"""The cache of compiled models: its keys, who may write it, and that it does not grow for ever."""

import os
from pathlib import Path

import pytest

from tilewright.api import cache, identity
from tilewright.api.machine import resolve_target
from tilewright.api.request import Request
from tilewright.ir.errors import CheckpointError, OptionError


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    """Three artifacts of 100 bytes; c was used longest ago, a last."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    paths = []
    for age, name in enumerate("abc"):
        path = cache.path_of(name)
        (path / "kernels").mkdir(parents=True)
        (path / "kernels" / "k.so").write_bytes(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))
        paths.append(path)
    return paths


@pytest.mark.parametrize(("limit", "left"), [(300, "abc"), (299, "ab"), (100, "a"), (0, "a")])
def test_what_was_used_longest_ago_goes_first(artifacts, limit, left):
    gone = cache.prune(limit)
    assert [path.name for path in artifacts if path.exists()] == list(left)
    assert sorted(path.name for path in gone) == sorted(set("abc") - set(left))


def test_a_use_keeps_an_artifact(artifacts):
    cache.touch(artifacts[2])
    cache.prune(200)
    assert [path.name for path in artifacts if path.exists()] == ["a", "c"]


def test_an_empty_cache_has_nothing_to_prune(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "none"))
    assert cache.prune(0) == []


def test_the_folder_is_the_switchs_or_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    assert cache.cache_dir() == tmp_path
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_dir() == tmp_path / "xdg" / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_dir().parts[-2:] == (".cache", "tilewright")


def test_a_key_changes_with_the_files_and_the_options(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    before = cache.key_of({"files": identity.file_identity(file), "dtype": "bf16"})
    assert cache.key_of({"dtype": "bf16", "files": identity.file_identity(file)}) == before
    assert cache.key_of({"files": identity.file_identity(file), "dtype": "f32"}) != before
    file.write_bytes(b"two")
    assert cache.key_of({"files": identity.file_identity(file), "dtype": "bf16"}) != before


def test_a_key_changes_with_all_that_the_compiler_may_use(tmp_path, monkeypatch):
    """Code for this processor alone must not be found on another that shares the folder."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")

    def key(sets, target="cpu"):
        monkeypatch.setattr("tilewright.api.request.instruction_sets", lambda: sets)
        return Request(file, target=resolve_target(target)).key

    assert key(("avx2", "fma")) != key(("avx2", "avx_vnni", "fma"))
    assert key(("avx2",), "sm_90") == key(("avx2", "fma"), "sm_90")


# ---- who may write it ----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "artifacts", "artifacts/a", "artifacts/a/kernels/k.so"])
@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_what_others_may_write_is_refused(artifacts, tmp_path, place, mode):
    cache.check_private(artifacts[0])
    (tmp_path / place).chmod(mode)
    with pytest.raises(OptionError, match=f"its mode is {mode:o}\n.*chmod -R go-w {tmp_path}"):
        cache.check_private(artifacts[0])


def test_what_belongs_to_others_is_refused(artifacts, monkeypatch):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner == 0:
        cache.check_private(artifacts[0])  # root may write everything anyhow
        for folder in artifacts[0].rglob("*"):
            os.chown(folder, 4321, -1)
    with pytest.raises(OptionError, match=r"it belongs to user \d+, this is user \d+\n.*set TILE"):
        cache.check_private(artifacts[0])


def test_a_new_folder_is_ours_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "a" / "b"))
    old = os.umask(0)
    try:
        cache.make_folder()
    finally:
        os.umask(old)
    assert [(tmp_path / "a" / "b" / p).stat().st_mode & 0o777 for p in (".", "artifacts")] == [
        0o700,
        0o700,
    ]
    cache.check_private(cache.path_of("none"))


def save_open_to_all(path, _):
    (path / "kernels").mkdir(parents=True)
    (path / "kernels" / "k.so").write_bytes(b"code")
    for item in (path / "kernels" / "k.so", path / "kernels", path):
        item.chmod(0o777)


def test_what_is_kept_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tilewright.runtime.artifact.save_artifact", save_open_to_all)
    assert cache.store(cache.path_of("key"), None)
    cache.check_private(cache.path_of("key"))


def test_nothing_is_kept_of_a_model_that_changed_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tilewright.runtime.artifact.save_artifact", save_open_to_all)

    def changed():
        raise CheckpointError("the model's files changed while it was compiled")

    with pytest.raises(CheckpointError, match="changed while it was compiled"):
        cache.store(cache.path_of("key"), None, changed)
    assert list(cache.path_of("key").parent.iterdir()) == []


def test_the_key_has_the_sources_of_all_that_compiles_a_model(monkeypatch):
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"")
    cache.code_fingerprint.__wrapped__()
    root = Path(cache.__file__).resolve().parent.parent
    found = {path.relative_to(root).as_posix() for path in read}
    assert found >= {"api/build_model.py", "api/compile_graph.py", "frontend/huggingface.py"}
    assert found >= {"ir/encoding.py", "passes/pipelines.py", "codegen/cpp/tw_math.h"}
