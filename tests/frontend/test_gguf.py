"""The GGUF reader on files we write: values, and every way a file can be wrong."""

import struct

import numpy as np
import pytest

from tilewright.frontend.gguf import is_gguf, read_gguf
from tilewright.ir.errors import CheckpointError

from .gguf_writer import ARCHITECTURE, entry, f32, gguf, table_entry, text


def save(tmp_path, data: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def small(tensors=None, entries=()) -> bytes:
    return gguf([ARCHITECTURE, *entries], tensors or [("a", (2, 3), "F32", f32(range(6)))])


def test_metadata_of_every_kind(tmp_path):
    entries = [
        ("n", "u32", 7),
        ("x", "f32", 0.5),
        ("yes", "bool", True),
        ("big", "u64", 2**40),
        ("minus", "i32", -3),
        ("name", "str", "größe"),
        ("list", "array", ("f32", [1.0, 2.0])),
        ("words", "array", ("str", ["a", "", "b c"])),
        ("none", "array", ("str", [])),
        ("nested", "array", ("array", [("u8", [1, 2]), ("u8", [3])])),
    ]
    file = read_gguf(save(tmp_path, small(entries=entries)))
    assert file.architecture == "llama"
    assert file.metadata == {
        "general.architecture": "llama",
        "n": 7,
        "x": 0.5,
        "yes": True,
        "big": 2**40,
        "minus": -3,
        "name": "größe",
        "list": [1.0, 2.0],
        "words": ["a", "", "b c"],
        "none": [],
        "nested": [[1, 2], [3]],
    }


def test_plain_tensors(tmp_path):
    values = np.linspace(-2, 2, 12).reshape(3, 4)
    half = values.astype(np.float16)
    brain = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    file = read_gguf(
        save(
            tmp_path,
            small(
                [
                    ("f32", (3, 4), "F32", f32(values)),
                    ("f16", (3, 4), "F16", half.tobytes()),
                    ("bf16", (4, 3), "BF16", brain.tobytes()),
                    ("empty", (0, 4), "F32", b""),
                    ("scalar", (), "F32", f32([9])),
                ]
            ),
        )
    )
    assert {name: t.shape for name, t in file.tensors.items()}["f32"] == (3, 4)
    np.testing.assert_array_equal(file.load("f32"), values.astype(np.float32))
    np.testing.assert_array_equal(file.load("f16"), half.astype(np.float32))
    bits = brain.astype(np.uint32) << 16
    np.testing.assert_array_equal(file.load("bf16"), bits.view(np.float32).reshape(4, 3))
    assert file.load("empty").shape == (0, 4)
    assert file.load("scalar") == 9
    assert file.load("f32").dtype == file.load("bf16").dtype == np.float32


def test_blocks_are_unpacked(tmp_path):
    """Q4_1: per 32 values a float16 scale and minimum, then nibbles, low halves first."""
    nibbles = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    block = np.array([0.5, -1], np.float16).tobytes() + nibbles.tobytes()
    file = read_gguf(save(tmp_path, small([("q", (2, 32), "Q4_1", block * 2)])))
    row = np.concatenate([np.arange(16), np.arange(16)[::-1]]) * 0.5 - 1
    np.testing.assert_array_equal(file.load("q"), np.stack([row, row]).astype(np.float32))
    assert file.raw("q").nbytes == file.tensors["q"].nbytes == 40


def test_every_truncation_is_reported(tmp_path):
    """Cut anywhere, the file is refused, and never with another kind of error."""
    whole = small(
        [("a", (2, 3), "F32", f32(range(6))), ("q", (1, 32), "Q8_0", b"\1" * 34)],
        [("words", "array", ("str", ["one", "two"])), ("n", "array", ("u32", [1, 2, 3]))],
    )
    read_gguf(save(tmp_path, whole))
    last = whole.rindex(b"\1" * 34) + 34  # after it there is only padding
    for size in [*range(200), *range(200, last, 7), last - 1]:
        with pytest.raises(CheckpointError) as caught:
            read_gguf(save(tmp_path, whole[:size]))
        assert "model.gguf" in str(caught.value)
        assert caught.value.what in ("truncated GGUF file", "malformed GGUF file")
    read_gguf(save(tmp_path, whole[:last]))


def test_random_damage_never_escapes(tmp_path):
    """Any byte changed: the file is read, or refused with our error; nothing else happens."""
    whole = bytearray(small(entries=[("words", "array", ("str", ["one", "two"]))]))
    rng = np.random.default_rng(0)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] = int(rng.integers(256))
        try:
            file = read_gguf(save(tmp_path, bytes(damaged)))
        except CheckpointError:
            continue
        for name in file.tensors:
            file.load(name)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\3\4" + bytes(40), r"not a GGUF file(.|\n)*begins with b'GGUF'"),
        (gguf([ARCHITECTURE], [], version=1), r"version 1 is not supported"),
        (gguf([ARCHITECTURE], [], version=3 << 24), r"big-endian(.|\n)*gguf-convert-endian"),
        (gguf([], []), r"names no model architecture(.|\n)*no entries"),
        (gguf([("x", "u32", 1)], []), r"names no model architecture(.|\n)*has x"),
        (gguf([ARCHITECTURE], [], counts=(0, 2**60)), r"1152921504606846976 metadata entries are"),
        (gguf([ARCHITECTURE], [], counts=(2**60, 1)), r"1152921504606846976 tensors are announced"),
        (gguf([ARCHITECTURE, ARCHITECTURE], []), r"'general\.architecture' occurs twice"),
        (small([("a", (1,), "F32", f32([0]))] * 2), r"the name occurs twice"),
        (small([("a", (1,), 99, f32([0]))]), r"tensor type 99 is unknown"),
        (small([("a", (33,), "Q8_0", bytes(64))]), r"rows of 33 are no multiple of a Q8_0 block"),
        (small([("a", (1,) * 5, "F32", f32([0]))]), r"has 5 dims; at most 4"),
        (small([("a", (2**40, 2**20), "F32", b"")]), r"truncated GGUF(.|\n)*tensor 'a'"),
        (small(entries=[("general.alignment", "u32", 3)]), r"alignment is 3, not a power of two"),
    ],
)
def test_malformed_files(tmp_path, data, message):
    with pytest.raises(CheckpointError, match=message):
        read_gguf(save(tmp_path, data))


def header(entries: bytes, count: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + entries + bytes(64)


def test_size_bombs_in_metadata(tmp_path):
    array = text("k") + struct.pack("<IIQ", 9, 8, 2**61)
    with pytest.raises(CheckpointError, match="2305843009213693952 array elements are announced"):
        read_gguf(save(tmp_path, header(array, 1)))
    numbers = text("k") + struct.pack("<IIQ", 9, 10, 2**61)
    with pytest.raises(CheckpointError, match="2305843009213693952 array elements are announced"):
        read_gguf(save(tmp_path, header(numbers, 1)))
    string = struct.pack("<Q", 2**63)
    with pytest.raises(CheckpointError, match=r"truncated(.|\n)*9223372036854775808 bytes"):
        read_gguf(save(tmp_path, header(string, 1)))
    deep = text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 8
    with pytest.raises(CheckpointError, match="nested more than 4 deep"):
        read_gguf(save(tmp_path, header(deep, 1)))
    with pytest.raises(CheckpointError, match="value type 77 is unknown"):
        read_gguf(save(tmp_path, header(text("k") + struct.pack("<I", 77), 1)))


def test_text_that_is_not_utf8(tmp_path):
    bad = entry("k", "str", "abc").replace(b"abc", b"a\xffc")
    with pytest.raises(CheckpointError, match="is not UTF-8"):
        read_gguf(save(tmp_path, header(bad, 1)))


def test_a_tensor_before_the_data_is_impossible(tmp_path):
    """Offsets are unsigned and relative to the data; the largest one overflows nothing."""
    table = table_entry("a", (1,), 0, 2**64 - 32)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + entry(*ARCHITECTURE) + table + bytes(64)
    with pytest.raises(CheckpointError, match=r"truncated(.|\n)*tensor 'a'"):
        read_gguf(save(tmp_path, data))


def test_missing_files(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="a folder where a GGUF file was expected"):
        read_gguf(tmp_path)


def test_recognition(tmp_path):
    assert is_gguf(save(tmp_path, b""))
    other = tmp_path / "blob"
    other.write_bytes(b"GGUF1234")
    assert is_gguf(other)
    other.write_bytes(b"else")
    assert not is_gguf(other)
    assert not is_gguf(tmp_path)


def offset_of(data: bytes, name: str, rank: int) -> int:
    """Where the offset of a tensor is written."""
    return data.index(text(name)) + len(text(name)) + 4 + 8 * rank + 4


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (0, r"'a' ends at byte \d+, 'b' begins at|'b' ends at byte \d+, 'a' begins at"),
        (32, r"'a' ends at byte \d+, 'b' begins at"),
        (65, r"placing tensor 'b'(.|\n)*offset 65 is no multiple of 32"),
        (96, r"truncated(.|\n)*tensor 'b'"),
    ],
)
def test_tensors_own_their_bytes(tmp_path, offset, message):
    """A table whose second tensor begins inside the first, between two blocks, or past the end."""
    data = bytearray(
        small([("a", (12,), "F32", f32(range(12))), ("b", (4,), "F32", f32(range(4)))])
    )
    read_gguf(save(tmp_path, bytes(data)))
    struct.pack_into("<Q", data, offset_of(data, "b", 1), offset)
    with pytest.raises(CheckpointError, match=message):
        read_gguf(save(tmp_path, bytes(data)))


def test_bytes_that_nobody_owns_are_allowed(tmp_path):
    """A gap before a tensor, bytes after the last, and an empty tensor inside another."""
    blob = f32(range(8)) + bytes(64) + f32([7]) + bytes(100)
    table = table_entry("a", (8,), 0, 0) + table_entry("b", (1,), 0, 96)
    table += table_entry("none", (0, 4), 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 3, 1) + entry(*ARCHITECTURE) + table
    file = read_gguf(save(tmp_path, head + bytes(-len(head) % 32) + blob))
    assert file.load("b") == 7
    assert file.load("none").shape == (0, 4)
    np.testing.assert_array_equal(file.load("a"), np.arange(8, dtype=np.float32))


# ---- parts -------------------------------------------------------------------------------------


def parts(folder, *, count=3, change=lambda index, entries: entries, skip=()):
    """A model in parts as llama-gguf-split writes them: one tensor each, metadata in the first."""
    for index in range(count):
        entries = [("split.no", "u32", index), ("split.count", "u32", count)]
        entries += [("split.tensors.count", "i32", count)]
        entries += [ARCHITECTURE, ("n", "u32", 7)] if index == 0 else []
        data = gguf(change(index, entries), [(f"t{index}", (2,), "F32", f32([index, 1]))])
        if index not in skip:
            (folder / f"m-{index + 1:05}-of-{count:05}.gguf").write_bytes(data)
    return [folder / f"m-{index + 1:05}-of-{count:05}.gguf" for index in range(count)]


def test_any_part_stands_for_the_whole(tmp_path):
    for path in parts(tmp_path):
        file = read_gguf(path)
        assert file.metadata["n"] == 7
        for index in range(3):
            np.testing.assert_array_equal(file.load(f"t{index}"), [index, 1])


def test_parts_that_are_missing_or_of_another_model(tmp_path):
    paths = parts(tmp_path, skip=(0, 2))
    with pytest.raises(CheckpointError, match=r"missing(.|\n)*2 of 3: m-00001-of(.|\n)*m-00003-of"):
        read_gguf(paths[1])

    def renumbered(index, entries):
        return [("split.no", "u32", 0), ("split.count", "u32", 3 + (index == 2)), *entries[2:]]

    first = parts(tmp_path, change=renumbered)[0]
    message = r"00002-of-00003.gguf: split.no is 0, not 1\n(.|\n)*split.count is 4, not 3"
    with pytest.raises(CheckpointError, match=message):
        read_gguf(first)

    def more(index, entries):
        return [e if e[0] != "split.tensors.count" else (*e[:2], 4) for e in entries]

    first = parts(tmp_path, change=more)[0]
    with pytest.raises(CheckpointError, match="count is 4, the parts have 3 tensors"):
        read_gguf(first)
    renamed = tmp_path / "model.gguf"
    parts(tmp_path)[0].rename(renamed)
    with pytest.raises(CheckpointError, match=r"one part of several(.|\n)*split\.count is 3"):
        read_gguf(renamed)
