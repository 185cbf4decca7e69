"""Artifacts: what is written is read back, and nothing that was tampered with is."""

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from tilewright.ir.dim import Symbol, floordiv, maximum, symbol
from tilewright.ir.encoding import Encoding
from tilewright.ir.errors import ArtifactError
from tilewright.ir.layout import KVLayout, LayerKV, Pool
from tilewright.ir.program import ALIGNMENT, DIM, Buffer, Kernel, Program
from tilewright.ir.steps import Choice, LaunchStep
from tilewright.ir.types import TensorType, bf16, f16, f32
from tilewright.runtime.artifact import (
    VERSION,
    Artifact,
    is_artifact,
    load_artifact,
    open_artifact,
    read_manifest,
    save_artifact,
)
from tilewright.runtime.program_json import program_from_json, program_to_json
from tilewright.runtime.stored_program import StoredProgram

T, PAGES = symbol("t"), symbol("pages")


def sample_program() -> Program:
    buffers = [
        Buffer("x", TensorType((T, 3), f32), "input"),
        Buffer("w", TensorType((3, 5), bf16), "weight", encoding=Encoding("panel32")),
        Buffer("b", TensorType((7,), f16), "weight"),
        Buffer("s", TensorType((), f32), "weight"),
        Buffer("k", TensorType((PAGES, 2, 16, 64), bf16), "state"),
        Buffer("tmp", TensorType((floordiv(T + 3, 4), 3), f32), "temp", 64 * maximum(T, 7)),
        Buffer("y", TensorType((T,), f32), "output"),
        Buffer("v", TensorType((PAGES, 2, 16, 32), bf16), "state"),
    ]
    kernels = [
        Kernel("k_a", "cpp", "1f", "// source a", "lib", "reduce", options={"lanes": (1, 2)}),
        Kernel(
            "k_b", "cpp", "2f", "// source b", "lib", "contract", args=("f32", "bf16", DIM, DIM)
        ),
        Kernel("k_c", "cpp", "3f", "// source c", "lib", "contract"),
    ]
    k1_reads, k1_writes = ("b", "s"), ("k", "tmp", "y")
    steps = (
        LaunchStep(
            "k0",
            (
                Choice("k_a", 0, 15, ("x", "w", T, T * T)),
                Choice("k_b", 16, None, ("x", "w", T, 2), (T, 2)),
            ),
            select=T,
            loc="layers.0",
            traffic=12 * T,
            operations=T * T,
        ),
        LaunchStep("k1", (Choice("k_c", 0, None, (*k1_reads, *k1_writes, 4), writes=k1_writes),)),
    )
    return Program(
        name="sample",
        target="cpu",
        symbols={"t": Symbol("t", 1, 512, 1, 16), "pages": Symbol("pages")},
        buffers={b.name: b for b in buffers},
        inputs=("x",),
        outputs=("y", "k"),
        kernels={k.name: k for k in kernels},
        steps=steps,
        arena_bytes=64 * maximum(T, 7) + 12 * floordiv(T + 3, 4),
        blobs={"lib": b"\x7fELF" + bytes(range(256))},
        kv=KVLayout(16, (LayerKV(Pool("k", 2, 64, bf16), Pool("v", 2, 32, bf16), window=128),)),
        meta={"isa": ()},
    )


def sample_weights():
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
        "b": rng.standard_normal(7).astype(np.float16),
        "s": np.float32(2.5).reshape(()),
        "unused": np.zeros(1000),
    }


def sample(**changes) -> Artifact:
    return Artifact(
        programs=(StoredProgram(sample_program(), "graph @sample"),),
        weights=sample_weights(),
        tokenizer_json='{"model": "…"}',
        chat_template="{{ messages }}",
        facts={"context_len": 8192, "eos": [1, 2]},
        states={"k": np.ones((3, 2), ml_dtypes.bfloat16)},
        extras={"signature.json": b"[1]"},
        **changes,
    )


@pytest.fixture(params=["folder", "one.zip"])
def saved(request, tmp_path) -> Path:
    return save_artifact(tmp_path / request.param, sample())


def test_round_trip(saved):
    assert is_artifact(saved)
    found = load_artifact(saved)
    expected = sample()
    assert found.weights.keys() == {"w", "b", "s"}
    for name, array in found.weights.items():
        np.testing.assert_array_equal(array, expected.weights[name])
        assert array.dtype == expected.weights[name].dtype
        assert array.shape == expected.weights[name].shape
        assert array.ctypes.data % ALIGNMENT == 0, f"{name} could not be used in place"
        assert not array.flags.writeable
    np.testing.assert_array_equal(found.states["k"], expected.states["k"])
    for name in ("programs", "tokenizer_json", "chat_template", "facts", "extras"):
        assert getattr(found, name) == getattr(expected, name), name
    assert read_manifest(saved)["name"] == "sample"


def test_optional_parts_may_be_missing(tmp_path):
    artifact = Artifact((StoredProgram(sample_program()),), sample_weights())
    path = save_artifact(tmp_path / "a", artifact)
    found = load_artifact(path)
    assert (found.programs[0].graph_text, found.tokenizer_json, found.facts) == (None, None, {})
    assert not found.states


def test_a_language_model_may_have_a_second_program(tmp_path):
    """Which takes no weights of its own, and stands beside the first without a module's facts."""
    second = replace(sample_program(), name="scores")
    programs = (StoredProgram(sample_program(), "graph @one"), StoredProgram(second, "graph @two"))
    for path in (tmp_path / "folder", tmp_path / "file.zip"):
        loaded = load_artifact(save_artifact(path, replace(sample(), programs=programs)))
        assert [p.program.name for p in loaded.programs] == [sample_program().name, "scores"]
        assert [p.graph_text for p in loaded.programs] == ["graph @one", "graph @two"]
        assert loaded.program == sample_program()


def test_equal_artifacts_are_equal_files(tmp_path):
    first = save_artifact(tmp_path / "1.zip", sample())
    second = save_artifact(tmp_path / "2.zip", sample())
    assert first.read_bytes() == second.read_bytes()


def test_sources_and_weights_are_readable_by_others(tmp_path):
    path = save_artifact(tmp_path / "a", sample())
    assert (path / "kernels" / "k_a.cpp").read_text() == "// source a"
    assert (path / "kernels" / "lib.so").read_bytes()[:4] == b"\x7fELF"
    with safe_open(path / "weights.safetensors", "np") as file:
        names = [n for n in file.keys() if not n.startswith("__pad_")]  # noqa: SIM118
        assert sorted(names) == ["b", "s", "w"]
        np.testing.assert_array_equal(file.get_tensor("b"), sample_weights()["b"])


def test_program_json_is_plain_and_round_trips():
    program = sample_program()
    data = json.loads(json.dumps(program_to_json(program)))
    sources = {k.name: k.source for k in program.kernels.values()}
    assert program_from_json(data, program.blobs, sources.__getitem__) == program
    assert "64*max(7, t)" in json.dumps(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["symbols"][0].update(name="t): import os\ndef f(x"), "is not a name"),
        (lambda d: d["symbols"][0].update(name="lambda"), "is not a name for a symbol"),
        (lambda d: d["symbols"][0].update(lo="1"), "'1' is not of type"),
        (
            lambda d: d["buffers"][0]["type"].update(shape=["exit", 3]),
            r"undeclared symbols \['exit'\]",
        ),
        (lambda d: d.update(arena_bytes="__import__('os')"), "ParseError"),
        (lambda d: d.update(arena_bytes=2.5), "2.5 is no dim"),
        (lambda d: d.update(arena_bytes=None), "None is no dim"),
        (lambda d: d["buffers"][0]["type"].update(dtype="f31"), "KeyError: 'f31'"),
        (lambda d: d["buffers"][0]["encoding"].update(group=-1), "is no encoding"),
        (lambda d: d["buffers"][0].update(encoding={"bits": 4}), "KeyError: 'order'"),
        (lambda d: d["buffers"][0]["encoding"].update(group=True), "True is not of type"),
        (
            lambda d: [
                d["buffers"][0]["encoding"].update(order="panel32"),
                d["buffers"][0]["type"].update(shape=[3]),
            ],
            "no panel32",
        ),
        (lambda d: d["steps"][0].update(products=["bf16", "f31"]), "step k0 multiplies bf16, f31"),
        (lambda d: d["buffers"].pop(5), "step k1 uses tmp, and there is no such buffer"),
        (lambda d: d["buffers"][5].update(offset=None), "tmp has no offset"),
        (lambda d: d["buffers"][4].update(role="secret"), "k has the role 'secret'"),
        (lambda d: d["kernels"][0].update(binary="other"), "k_a is said to be in other"),
        (lambda d: d["steps"][0]["choices"].clear(), "step k0 has no kernel"),
        (lambda d: d["steps"][0].pop("select"), "KeyError: 'select'"),
        (lambda d: d.update(inputs=["nope"]), "nope is an input or output, but no buffer"),
        (lambda d: d.update(steps=3), "TypeError"),
        (lambda d: d.clear(), "KeyError"),
    ],
)
def test_damaged_programs_are_refused(change, message):
    program = sample_program()
    data = json.loads(json.dumps(program_to_json(program)))
    change(data)
    with pytest.raises(ArtifactError, match=message):
        program_from_json(data, program.blobs, lambda name: "")


# ---- tampering -----------------------------------------------------------------------------


def edit_manifest(path, change):
    file = path / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


@pytest.fixture
def folder(tmp_path) -> Path:
    return save_artifact(tmp_path / "artifact", sample())


@pytest.mark.parametrize(
    "name",
    ["program.json", "weights.safetensors", "kernels/lib.so", "kernels/k_a.cpp", "facts.json"],
)
def test_a_changed_byte_is_noticed(folder, name):
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{name} has the hash"):
        load_artifact(folder)


def test_a_changed_byte_in_a_zip_is_noticed(tmp_path):
    path = save_artifact(tmp_path / "a.zip", sample())
    data = bytearray(path.read_bytes())
    data[data.index(b"// source a")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"kernels/k_a.cpp has the hash"):
        load_artifact(path)


def test_missing_and_truncated_files_are_noticed(folder):
    (folder / "weights.safetensors").write_bytes(b"1234")
    with pytest.raises(ArtifactError, match=r"weights.safetensors has 4 bytes, written were"):
        load_artifact(folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"weights.safetensors is missing"):
        load_artifact(folder)


def test_version_format_and_path(folder, tmp_path):
    edit_manifest(folder, lambda d: d.update(version=99))
    with pytest.raises(ArtifactError, match=f"it has version 99, this runtime reads {VERSION}"):
        load_artifact(folder)
    edit_manifest(folder, lambda d: d.update(format="other"))
    with pytest.raises(ArtifactError, match=r"it has a manifest.json, which something else wrote"):
        load_artifact(folder)
    (folder / "manifest.json").write_text("{" * 100_000)
    with pytest.raises(ArtifactError, match=r"manifest.json is no JSON"):
        load_artifact(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"it has no manifest.json"):
        load_artifact(folder)
    assert not is_artifact(folder)
    with pytest.raises(ArtifactError, match="no such artifact"):
        load_artifact(tmp_path / "nowhere")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(ArtifactError, match="the file is no artifact"):
        load_artifact(tmp_path / "text.zip")


def test_a_manifest_of_somebody_else_makes_no_artifact(folder, tmp_path):
    """Such as a checkpoint folder that has one too: it is read as what it is, never replaced."""
    other = tmp_path / "checkpoint"
    other.mkdir()
    (other / "manifest.json").write_text('{"name": "web app", "icons": []}')
    assert not is_artifact(other)
    photos = tmp_path / "photos.zip"
    with zipfile.ZipFile(photos, "w") as archive:
        archive.writestr("a.jpg", b"...")
    for path in (other, photos):
        with pytest.raises(ArtifactError, match=r"without a manifest.json of ours"):
            save_artifact(path, sample())
    os.mkfifo(tmp_path / "pipe")
    assert not is_artifact(tmp_path / "pipe")  # and it is not waited for
    (folder / "manifest.json").write_text("")
    assert is_artifact(folder)  # damaged, and still one: program.json is there


def test_binaries_have_their_suffix_once(folder):
    names = [path.name for path in (folder / "kernels").iterdir()]
    assert names
    assert [name for name in names if name.count(".so") > 1] == []


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "c:\\x", "kernels//x", ""]
)
def test_names_cannot_lead_out(folder, name):
    edit_manifest(folder, lambda d: d["files"].update({name: {"bytes": 1, "sha256": "0"}}))
    with pytest.raises(ArtifactError, match="a name that leads elsewhere"):
        load_artifact(folder)


def test_links_cannot_lead_out(folder, tmp_path):
    outside = tmp_path / "outside.json"
    shutil.move(folder / "facts.json", outside)
    os.symlink(outside, folder / "facts.json")
    with pytest.raises(ArtifactError, match="lies outside of it"):
        load_artifact(folder)


def rezip(path, target, compression=zipfile.ZIP_STORED, extra=None):
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", compression) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        for name in extra or ():
            new.writestr(name, b"x")
    return target


def test_zips_of_others(tmp_path):
    path = save_artifact(tmp_path / "a.zip", sample())
    assert load_artifact(rezip(path, tmp_path / "b.zip")).program == sample_program()
    with pytest.raises(
        ArtifactError, match=r"is compressed; only stored files are read \(zip -0\)"
    ):
        load_artifact(rezip(path, tmp_path / "c.zip", zipfile.ZIP_DEFLATED))
    with pytest.raises(ArtifactError, match="a name that leads elsewhere"):
        load_artifact(rezip(path, tmp_path / "d.zip", extra=["../out"]))
    with pytest.warns(UserWarning, match="Duplicate name"):
        rezip(path, tmp_path / "e.zip", extra=["facts.json"])
    link = zipfile.ZipInfo("facts.json")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ArtifactError, match=r"facts.json is a link"):
        load_artifact(tmp_path / "g.zip")
    with pytest.raises(ArtifactError, match=r"facts.json is there twice"):
        load_artifact(tmp_path / "e.zip")
    (tmp_path / "f.zip").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ArtifactError, match="the file is no artifact"):
        load_artifact(tmp_path / "f.zip")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 1 << 40]}}, "place is 0 to"),
        ({"w": {"dtype": "BF16", "shape": [1 << 61, 8], "data_offsets": [0, 30]}}, "place is 0 to"),
        ({"w": {"dtype": "BF16", "shape": [3, -5], "data_offsets": [0, 30]}}, "the entry of 'w'"),
        ({"w": {"dtype": "X", "shape": [15], "data_offsets": [0, 30]}}, "'w' has the dtype 'X'"),
        ({"w": {"dtype": "BF16", "shape": [15], "data_offsets": [30, 0]}}, "place is 30 to 0"),
        ([], "not a JSON object"),
    ],
)
def test_headers_of_weights_are_not_trusted(header, message):
    from tilewright.runtime.weight_file import read_weights

    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(30)
    with pytest.raises(ArtifactError, match=message):
        read_weights(data, "weights.safetensors")
    with pytest.raises(ArtifactError, match="a header of 1152921504606846976 bytes"):
        read_weights((1 << 60).to_bytes(8, "little") + data, "weights.safetensors")
    with pytest.raises(ArtifactError, match="it has 3 bytes"):
        read_weights(b"abc", "weights.safetensors")


def test_another_processor_is_refused(folder, monkeypatch):
    edit_manifest(folder, lambda d: d["target"].update(isa=["avx9"]))
    with pytest.raises(ArtifactError, match="it uses avx9, which this processor lacks"):
        load_artifact(folder)
    assert open_artifact(folder).program.name == "sample", "it can still be looked at"
    edit_manifest(folder, lambda d: d["target"].update(machine="pdp11"))
    with pytest.raises(ArtifactError, match="it was compiled for pdp11, this is"):
        load_artifact(folder)


def test_gpu_programs_are_kept_by_kind(tmp_path):
    program = replace(sample_program(), target="sm_90")
    kernels = {n: replace(k, language="triton", num_warps=4) for n, k in program.kernels.items()}
    program = replace(program, kernels=kernels)
    path = save_artifact(tmp_path / "gpu", Artifact((StoredProgram(program),), sample_weights()))
    assert (path / "kernels" / "lib.cubin").is_file()
    assert (path / "kernels" / "k_a.py").is_file()
    assert load_artifact(path).program == program
    assert read_manifest(path)["target"] == {"name": "sm_90", "kind": "cuda"}
