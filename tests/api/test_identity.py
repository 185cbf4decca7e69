"""The identity of a model is the content of its files, and is cheap to ask for again."""

import json
import logging
import os
import random
import shutil
import threading

import pytest

from tilewright.api import cache, identity
from tilewright.ir.errors import CheckpointError, OptionError

OLD_NS = 10**18


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The store of hashes, in a cache of this test's own; files need not be old."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "GRAIN_NS", -OLD_NS)
    return tmp_path / "cache" / identity.STORE


@pytest.fixture
def reads(monkeypatch):
    """The sizes of the files that were read, in order."""
    seen, digest = [], identity._digest
    monkeypatch.setattr(identity, "_digest", lambda fd, n: (seen.append(n), digest(fd, n))[1])
    return seen


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(random.Random(0).randbytes(100_000))
    return path


def test_each_byte_counts_whatever_size_and_mtime_say(folder, monkeypatch):
    monkeypatch.setattr(identity, "CHUNK", 1000)
    file = folder / "model.safetensors"
    stat, seen = file.stat(), [identity.file_identity(folder)]
    for at in (0, 999, 1000, 55_555, 99_999):
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        seen.append(identity.file_identity(folder))
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("tokenizer.json", True),
        ("generation_config.json", True),
        ("chat_template.jinja", True),
        ("additional_chat_templates/tool_use.jinja", True),
        ("merges.txt", True),
        ("adapter.safetensors", True),
        ("README.md", False),
        ("modeling_own.py", False),
        ("pytorch_model.bin", False),
        (".gitattributes", False),
    ],
)
def test_what_decides_the_model_counts(folder, name, counts):
    before = identity.file_identity(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("new")
    assert (identity.file_identity(folder) != before) == counts


def test_the_same_bytes_are_the_same_wherever_they_lie(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "links").mkdir()
    os.symlink(folder / "config.json", tmp_path / "links" / "config.json")
    os.link(folder / "model.safetensors", tmp_path / "links" / "model.safetensors")
    found = [identity.file_identity(tmp_path / n) for n in ("model", "copy", "links")]
    assert found[0] == found[1] == found[2]


def test_a_file_is_read_once(folder, reads, store):
    first = identity.file_identity(folder)
    assert sorted(reads) == [2, 100_000]
    assert identity.file_identity(folder) == first
    assert len(reads) == 2
    os.utime(folder / "config.json")
    assert identity.file_identity(folder) == first
    assert reads[2:] == [2], "a new time is reason to look again"
    assert store.stat().st_mode & 0o777 == 0o600


def test_a_file_that_changed_a_moment_ago_is_read_again(folder, reads, monkeypatch):
    monkeypatch.setattr(identity, "GRAIN_NS", OLD_NS)  # all that is here is younger
    identity.file_identity(folder)
    identity.file_identity(folder)
    assert len(reads) == 4


def test_parts_of_one_model_count_together(tmp_path):
    for number in (1, 2):
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(b"part")
    (tmp_path / "n-00001-of-00002.gguf").write_bytes(b"another model")
    first = tmp_path / "m-00001-of-00002.gguf"
    before = identity.file_identity(first)
    assert [name for name, _ in before] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"trap")
    assert identity.file_identity(first) != before


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"1:2": 3}', '{"1:2": [[1, 2, 3], "x"]}', "[" * 10**5, "\xff"]
)
def test_a_damaged_store_is_made_anew(folder, store, reads, caplog, text):
    first = identity.file_identity(folder)
    store.write_text(text, "latin-1")
    with caplog.at_level(logging.WARNING):
        assert identity.file_identity(folder) == first
    assert f"{store} is damaged, and made anew" in caplog.text
    assert len(json.loads(store.read_text())) == 2
    assert len(reads) == 4


def test_the_store_is_bounded(folder, store, monkeypatch):
    monkeypatch.setattr(identity, "MAX_REMEMBERED", 5)
    for i in range(9):
        (folder / f"{i}.json").write_text(str(i))
        identity.file_identity(folder / f"{i}.json")
    assert len(json.loads(store.read_text())) == 5


def test_a_store_that_others_may_write_is_refused(folder, store):
    identity.file_identity(folder)
    store.chmod(0o666)
    with pytest.raises(OptionError, match="other users may write to the cache"):
        identity.file_identity(folder)


@pytest.mark.parametrize("end", [b"", b"longer" * 10])
def test_a_file_that_changes_all_the_while_is_refused(folder, monkeypatch, end):
    file, digest = folder / "model.safetensors", identity._digest

    def change(descriptor, size):
        found = digest(descriptor, size)
        file.write_bytes(file.read_bytes()[: size // 2] + end)
        return found

    monkeypatch.setattr(identity, "_digest", change)
    with pytest.raises(CheckpointError, match="changes while it is read"):
        identity.file_identity(folder)


def test_a_file_that_is_shorter_than_it_said_is_no_crash(folder):
    with (folder / "model.safetensors").open("rb") as file:
        assert identity._digest(file.fileno(), 10 * identity.CHUNK) is None


def test_many_at_once_agree(folder, store):
    found, alone = [], identity.file_identity(folder)
    threads = [
        threading.Thread(target=lambda: found.append(identity.file_identity(folder)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 8
    assert len(json.loads(store.read_text())) == 2
    assert [p.name for p in cache.cache_dir().iterdir() if p.name.startswith(".")] == []
