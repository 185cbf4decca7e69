"""Writes small GGUF files for tests, valid ones and ones that are wrong in one place."""

import struct

import numpy as np

SCALARS = {"u8": 0, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "array": 9, "u64": 10}
FORMATS = {"u8": "<B", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?", "u64": "<Q"}
KINDS = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
ALIGNMENT = 32


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: str, value) -> bytes:
    return text(key) + struct.pack("<I", SCALARS[kind]) + payload(kind, value)


def payload(kind: str, value) -> bytes:
    if kind == "str":
        return text(value)
    if kind == "array":
        element, items = value
        head = struct.pack("<IQ", SCALARS[element], len(items))
        return head + b"".join(payload(element, item) for item in items)
    return struct.pack(FORMATS[kind], value)


def table_entry(name: str, shape, kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def gguf(entries, tensors, *, magic=b"GGUF", version=3, counts=None) -> bytes:
    """A file: entries are (key, kind, value), tensors (name, shape, kind, packed bytes)."""
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_entries)
    head += b"".join(entry(*item) for item in entries)
    table, blob = b"", b""
    for name, shape, kind, data in tensors:
        table += table_entry(name, shape, KINDS.get(kind, kind), len(blob))
        blob += data + b"\0" * (-len(data) % ALIGNMENT)
    head += table
    return head + b"\0" * (-len(head) % ALIGNMENT) + blob


def f32(array) -> bytes:
    return np.asarray(array, "<f4").tobytes()


ARCHITECTURE = ("general.architecture", "str", "llama")
