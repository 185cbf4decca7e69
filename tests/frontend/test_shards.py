"""The safetensors reader: values, shards, and files that are wrong."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tilewright.frontend.shards import read_folder, read_shard
from tilewright.ir import types
from tilewright.ir.errors import CheckpointError
from tilewright.ir.lazy_arrays import LazyArray, LazyArrays, in_memory

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.linspace(-1, 1, 4, dtype=np.float16),
    "brain": np.linspace(-1, 1, 4).astype(ml_dtypes.bfloat16),
    "index": np.array([[1], [2]], np.int64),
    "flag": np.array([True, False]),
    "scalar": np.array(2.5, np.float32),
    "none": np.zeros((0, 4), np.float32),
}


def test_arrays_of_every_dtype(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    found = read_shard(tmp_path / "model.safetensors")
    assert sorted(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].shape == array.shape
        loaded = found[name].load()
        assert loaded.dtype == array.dtype
        np.testing.assert_array_equal(loaded, array)
    assert found["a"].nbytes == 24


def test_loading_casts(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    found = read_shard(tmp_path / "model.safetensors")
    wide = found["brain"].astype(types.f32)
    assert wide.dtype == types.f32
    np.testing.assert_array_equal(wide.load(), ARRAYS["brain"].astype(np.float32))


def test_weights_load_one_at_a_time():
    loads = []

    def lazy(name):
        def read():
            loads.append(name)
            return np.ones(3, np.float32)

        return LazyArray((3,), types.f32, read)

    weights = LazyArrays({"x": lazy("x"), "y": lazy("y")})
    assert len(weights) == 2
    assert "x" in weights
    assert weights.nbytes == 24
    assert weights.lazy("y").shape == (3,)
    assert loads == []
    np.testing.assert_array_equal(weights["y"], np.ones(3))
    assert loads == ["y"]
    with pytest.raises(KeyError):
        weights["z"]


def test_arrays_in_memory():
    array = np.arange(4, dtype=np.int32)
    assert np.shares_memory(in_memory(array).load(), array)
    with pytest.raises(TypeError, match="complex64 have no counterpart"):
        in_memory(np.zeros(2, np.complex64))


def shards(folder, table, files):
    for name, arrays in files.items():
        save_file(arrays, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def test_shards(tmp_path):
    shards(
        tmp_path,
        {"a": "1.safetensors", "b": "2.safetensors"},
        {
            "1.safetensors": {"a": ARRAYS["a"]},
            "2.safetensors": {"b": ARRAYS["half"]},
        },
    )
    found = read_folder(tmp_path)
    assert sorted(found) == ["a", "b"]
    np.testing.assert_array_equal(found["b"].load(), ARRAYS["half"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": "../1.safetensors"}, "no plain file name"),
        ({"a": "/etc/passwd"}, "no plain file name"),
        ({"a": 3}, "no plain file name"),
        ({"a": "x" * 5000}, "no plain file name"),
        ({"a": "1\0"}, "no plain file name"),
        ({"a": ".."}, "no plain file name"),
        ({"a": ""}, "no plain file name"),
        ({"a": "x", "b": "y"}, "2 of 2: x, y"),
        ({"a": "absent.safetensors"}, r"a weight file is missing(.|\n)*absent"),
        ({"b": "1.safetensors"}, r"lacks a weight that the index promises(.|\n)*'b'"),
    ],
)
def test_a_wrong_index(tmp_path, table, message):
    shards(tmp_path, table, {"1.safetensors": {"a": ARRAYS["a"]}})
    with pytest.raises(CheckpointError, match=message):
        read_folder(tmp_path)


def test_an_index_without_a_map(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no 'weight_map' object"):
        read_folder(tmp_path)


def test_the_same_weight_twice(tmp_path):
    save_file({"a": ARRAYS["a"]}, tmp_path / "x.safetensors")
    save_file({"a": ARRAYS["a"]}, tmp_path / "y.safetensors")
    with pytest.raises(CheckpointError, match=r"two files hold the same weight(.|\n)*'a'"):
        read_folder(tmp_path)
    save_file({"a": ARRAYS["a"]}, tmp_path / "model.safetensors")
    assert list(read_folder(tmp_path)) == ["a"]


def damaged(header: object, body: bytes = bytes(64)) -> bytes:
    return as_text(json.dumps(header).encode()) + body


def as_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def f32_at(begin: int, end: int) -> dict:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\1\2", "it has 2 bytes"),
        (struct.pack("<Q", 2**62) + bytes(8), "a header of 4611686018427387904 bytes"),
        (struct.pack("<Q", 21 << 20) + b" " * (21 << 20), "at most 20971520 are read"),
        (damaged({"a": f32_at(0, 64), "b": f32_at(32, 64)}), "'b' at 32 to 64 lies over 'a'"),
        (damaged({"a": f32_at(0, 32), "b": f32_at(0, 32)}), "'b' at 0 to 32 lies over 'a'"),
        (damaged({"a": f32_at(0, 24), "b": f32_at(32, 64)}), "8 bytes before 'b' belong to nobody"),
        (damaged({"a": f32_at(0, 60)}), "4 bytes after 'a' belong to nobody"),
        (damaged({}), "64 bytes after the header belong to nobody"),
        (damaged({"__metadata__": 3}, b""), "__metadata__ is no object of texts"),
        (damaged({"__metadata__": {"a": 1}}, b""), "__metadata__ is no object of texts"),
        (damaged({"a": {**f32_at(0, 64), "shape": [16.0]}}), "the entry of 'a'"),
        (damaged({"a": {**f32_at(0, 64), "shape": [True] * 4}}), "the entry of 'a'"),
        (damaged({"a": {**f32_at(0, 64), "shape": [1] * 65}}), "the entry of 'a'"),
        (damaged({"a": {**f32_at(0, 0), "shape": [0, 2**61]}}, b""), "its place is 0 to 0"),
        (damaged({"a": {**f32_at(0, 64), "dtype": ["F32"]}}), r"the dtype \['F32'\]"),
        (damaged(json.loads("[" * 500 + "]" * 500)), "not a JSON object"),
        (as_text(b'{"a": NaN}'), "NaN is no JSON"),
        (as_text(b'{"a": 1, "a": 2}'), "'a' is there twice"),
        (as_text(b"[" * 100_000), "its header is not JSON"),
        (as_text(b'{"\xff": 1}'), "its header is not JSON"),
        (as_text('{"a": 1}'.encode("utf-16")), "its header is not JSON"),
        (as_text(b'{"a": ' + b"9" * 5000 + b"}"), "its header is not JSON"),
        (struct.pack("<Q", 4) + b"{{{{", "its header is not JSON"),
        (damaged([1, 2]), "not a JSON object"),
        (damaged({"a": {"dtype": "F32", "shape": [2]}}), "the entry of 'a'"),
        (damaged({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}), "the entry of"),
        (damaged({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "takes 8 bytes"),
        (
            damaged({"a": {"dtype": "F32", "shape": [40], "data_offsets": [0, 160]}}),
            "0 to 160 of 64",
        ),
        (damaged({"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}), "the dtype 'C64'"),
    ],
)
def test_damaged_files(tmp_path, data, message):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_shard(tmp_path / "model.safetensors")


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    header = {"a": f32_at(0, 32), "b": {**f32_at(32, 64), "dtype": "X"}, "c": {"dtype": "F32"}}
    (tmp_path / "model.safetensors").write_bytes(damaged(header))
    with pytest.raises(CheckpointError, match=r"'b' has the dtype(.|\n)*the entry of 'c'"):
        read_shard(tmp_path / "model.safetensors")


def test_tensors_at_odd_addresses_are_read_right_and_told(tmp_path, caplog):
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": f32_at(1, 9)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "model.safetensors"
    path.write_bytes(as_text(text) + b"x" + np.array([1.5, -2], np.float32).tobytes())
    loaded = read_shard(path)["b"].load()
    assert loaded.flags.aligned
    assert loaded.tolist() == [1.5, -2]
    assert "1 tensors start at odd addresses, the first is 'b'" in caplog.text


def test_a_tensor_of_two_shards(tmp_path):
    files = {"1.safetensors": {"a": ARRAYS["a"]}, "2.safetensors": ARRAYS}
    shards(tmp_path, {"a": "1.safetensors", "half": "2.safetensors"}, files)
    with pytest.raises(CheckpointError, match=r"'a' is in 2\.safetensors, the index says in 1"):
        read_folder(tmp_path)


def test_a_tensor_that_the_index_leaves_out_is_there(tmp_path):
    shards(tmp_path, {"a": "1.safetensors"}, {"1.safetensors": ARRAYS})
    assert read_folder(tmp_path).keys() == ARRAYS.keys()


def test_an_index_that_contradicts_itself(tmp_path):
    shards(tmp_path, {}, {"1.safetensors": ARRAYS})
    text = '{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="'a' is there twice"):
        read_folder(tmp_path)
