"""Damaged and hostile GGUF files: our own error or a model, in bounded memory, nothing else."""

import re
import struct
import subprocess
import sys
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from tilewright.frontend.gguf import DEFAULT_ALIGNMENT, read_gguf
from tilewright.frontend.gguf_config import hf_config
from tilewright.frontend.gguf_header import MAX_ELEMENTS, MAX_METADATA
from tilewright.frontend.gguf_tokenizer import end_ids, from_gguf
from tilewright.ir.errors import CheckpointError

pytest.importorskip("transformers")

from .gguf_models import random_model, tensors_of, write_model
from .gguf_writer import ARCHITECTURE, entry, gguf, table_entry, text
from .test_gguf_tokenizer import sentencepiece

SEED = 7
ODD = (0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    facts = {f"tokenizer.ggml.{name}": value for name, value in sentencepiece().items()}
    facts |= {"rope.scaling.factor": ("f32", 2.0), "attention.sliding_window": ("u32", 4)}
    model = random_model("mistral", head_dim=8)
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    tensors = tensors_of(model, "llama")
    return write_model(path, model, "llama", facts, tensors=tensors).read_bytes()


def survives(path) -> bool:
    """Whether a file is read, and every part of it that is asked for is; CheckpointError if not."""
    try:
        file = read_gguf(path)
        spans = sorted((t.offset, t.offset + t.nbytes) for t in file.tensors.values() if t.nbytes)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        alignment = file.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        assert all(tensor.offset % alignment == 0 for tensor in file.tensors.values())
        for name in file.tensors:
            file.load(name)
        end_ids(file)
        source = from_gguf(file)
        if source is not None:
            source.load().tokenizer.encode("ab a")
        hf_config(file)
    except CheckpointError as error:
        return str(path.parent) not in str(error)  # an error that does not say where is no refusal
    return True


def damaged(whole: bytes, rng: np.random.Generator, kind: str) -> bytes:
    """One change: most of them within the header, where everything is decided."""
    data, size = bytearray(whole), len(whole)
    at = int(rng.integers(4, min(size, 5000)))
    if kind == "bit":
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del data[int(rng.integers(size)) :]
    elif kind == "number":
        struct.pack_into("<Q", data, at, ODD[int(rng.integers(len(ODD)))])
    elif kind == "type":
        struct.pack_into("<I", data, at, int(rng.integers(14)))
    elif kind == "float":
        struct.pack_into("<f", data, at, float("nan") if rng.integers(2) else float("inf"))
    elif kind == "offset":  # of one tensor, by little
        names = list(re.finditer(rb"blk\.\d\.[a-z_]+\.weight", whole))
        end = names[int(rng.integers(len(names)))].end()
        place = end + 8 + 8 * struct.unpack_from("<I", whole, end)[0]
        (offset,) = struct.unpack_from("<Q", whole, place)
        struct.pack_into("<Q", data, place, max(0, offset + int(rng.integers(-40, 40))))
    elif kind == "swap":
        other = int(rng.integers(4, 5000))
        data[at : at + 16], data[other : other + 16] = data[other : other + 16], data[at : at + 16]
    else:
        del data[at : at + int(rng.integers(1, 40))]
    return bytes(data)


@pytest.mark.parametrize(
    "kind", ["bit", "cut", "number", "type", "float", "offset", "swap", "delete"]
)
def test_damage_ends_in_our_error_or_in_a_model(tmp_path, whole, kind):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    assert survives(path)
    rng = np.random.default_rng(SEED)
    refused = 0
    for _ in range(120):
        path.write_bytes(damaged(whole, rng, kind))
        refused += not survives(path)
    assert refused > 0


def first_header(count: int, body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, count) + body


@pytest.mark.parametrize("value", ODD[2:])
def test_lengths_that_no_file_has(tmp_path, value):
    """As a string's length, an array's count, the counts of the header, a dim and an offset."""
    path = tmp_path / "m.gguf"
    number = struct.pack("<Q", value)
    tensor = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + entry(*ARCHITECTURE)
    files = [
        first_header(1, number + bytes(64)),
        first_header(1, text("k") + struct.pack("<I", 8) + number + bytes(64)),
        first_header(1, text("k") + struct.pack("<II", 9, 8) + number + bytes(64)),
        first_header(1, text("k") + struct.pack("<III", 9, 9, 0) + number + bytes(64)),
        b"GGUF" + struct.pack("<IQQ", 3, value, 1) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 1, value) + bytes(64),
        tensor + table_entry("a", (value, value, value), 0, 0) + bytes(64),
        tensor + table_entry("a", (0, value), 0, 0) + bytes(64),
        tensor + table_entry("a", (1,), 0, value) + bytes(64),
    ]
    for number, data in enumerate(files):
        path.write_bytes(data)
        if value > 2**48 or number != 7:  # an empty tensor may have a long dim
            assert not survives(path)


def test_memory_stays_near_the_size_of_the_file(tmp_path):
    """Lists of small things take ten times what they take in the file: they are bounded."""
    path = tmp_path / "m.gguf"
    words = struct.pack("<QH", 2, 0x6161) * 400_000
    body = text("k") + struct.pack("<IIQ", 9, 8, 400_000) + words
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry(*ARCHITECTURE) + body)
    tracemalloc.start()
    read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = path.stat().st_size
    assert (peak - 2 * size) / 400_000 * MAX_ELEMENTS < 500e6
    count = MAX_ELEMENTS + 1
    body = text("k") + struct.pack("<IIQ", 9, 0, count) + bytes(count)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry(*ARCHITECTURE) + body)
    with pytest.raises(CheckpointError, match=rf"{count} elements of arrays"):
        read_gguf(path)
    long = text("k") + struct.pack("<IQ", 8, MAX_METADATA) + bytes(MAX_METADATA)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry(*ARCHITECTURE) + long)
    with pytest.raises(CheckpointError, match=rf"a text of {MAX_METADATA} bytes; at most"):
        read_gguf(path)


def test_twice_the_same_name(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([ARCHITECTURE, ("k", "u32", 1), ("k", "u32", 1)], []))
    assert not survives(path)
    one = ("a", (1,), "F32", bytes(4))
    path.write_bytes(gguf([ARCHITECTURE], [one, one]))
    assert not survives(path)


def test_a_command_that_meets_a_hostile_file_says_so(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(first_header(1, text("k") + struct.pack("<IIQ", 9, 8, 2**63) + bytes(64)))
    command = [sys.executable, "-m", "tilewright.cli", "inspect", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "malformed GGUF file" in done.stderr
    assert "Traceback" not in done.stderr
