"""The cache of compiled models: its keys, and that it does not grow without bound."""

import os

import pytest

from tilewright.cli import cache


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
    before = cache.key_of({"files": cache.file_identity(file), "dtype": "bf16"})
    assert cache.key_of({"dtype": "bf16", "files": cache.file_identity(file)}) == before
    assert cache.key_of({"files": cache.file_identity(file), "dtype": "f32"}) != before
    file.write_bytes(b"two")
    assert cache.key_of({"files": cache.file_identity(file), "dtype": "bf16"}) != before
