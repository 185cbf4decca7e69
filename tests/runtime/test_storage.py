"""Where artifacts lie: written whole or not at all, and zips that share no bytes."""

import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.errors import ArtifactError
from tilewright.runtime import artifact as module
from tilewright.runtime.artifact import load_artifact, save_artifact
from tilewright.runtime.storage import HASH_CHUNK, Hasher, digest
from tilewright.runtime.stored_program import StoredProgram

from .test_artifact import sample, sample_program


@pytest.mark.parametrize("name", ["folder", "one.zip"])
def test_an_interrupted_write_leaves_the_old_artifact(tmp_path, monkeypatch, name):
    path = save_artifact(tmp_path / name, sample())

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_artifact(path, sample())
    with pytest.raises(KeyboardInterrupt):
        save_artifact(tmp_path / f"new-{name}", sample())
    assert os.listdir(tmp_path) == [name], "nothing half-written is left"
    assert load_artifact(path).program == sample_program()


@pytest.mark.parametrize("name", ["folder", "one.zip"])
def test_an_artifact_is_replaced_but_nothing_else(tmp_path, name):
    path = save_artifact(tmp_path / name, sample())
    programs = (StoredProgram(sample().program, "graph @new"),)
    save_artifact(path, replace(sample(), programs=programs))
    assert load_artifact(path).programs[0].graph_text == "graph @new"
    assert os.listdir(tmp_path) == [name]
    (tmp_path / "mine").mkdir()
    save_artifact(tmp_path / "mine", sample())  # an empty directory may be filled
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    with pytest.raises(ArtifactError, match="will not overwrite what is no artifact"):
        save_artifact(tmp_path / "photos", sample())
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "cat"
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match="will not overwrite"):
        save_artifact(tmp_path / "file", sample())


def test_names_of_extras_are_checked(tmp_path):
    with pytest.raises(ArtifactError, match="leads elsewhere"):
        save_artifact(tmp_path / "a", replace(sample(), extras={"../../x": b""}))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("size", [0, 1, HASH_CHUNK - 1, HASH_CHUNK, HASH_CHUNK + 1])
def test_hash_of_pieces_is_the_hash_of_the_whole(size):
    class Sink:
        def write(self, data):
            pass

    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    hasher = Hasher(Sink())
    for at in range(0, size, 5_000_001):
        hasher.write(data[at : at + 5_000_001])
    assert hasher.hexdigest() == digest(data)
    assert hasher.size == size


def test_files_of_a_zip_share_no_bytes(tmp_path):
    """A directory of many names for the same large file would be read as often."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("manifest.json", "b", "c"):
            archive.writestr(name, bytes(5000))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    while at >= 0:
        data[at + 42 : at + 46] = bytes(4)  # where the file is: at the first one's place
        at = data.find(b"PK\1\2", at + 1)
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="lies over another file"):
        load_artifact(path)
