"""Where the data of weights lies in an ONNX file, found without reading it.

Protocol buffers (developers.google.com/protocol-buffers/docs/encoding) are walked as far as the raw
data of the graph's initializers: what is left without them is small, and the data itself is read
from the file when it is asked for, whatever its size.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...ir.errors import CheckpointError

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # of ModelProto, GraphProto, TensorProto (onnx.proto)
MIN_BYTES = 256  # shorter data stays where it is
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5


class ByteRange(NamedTuple):
    """Where bytes lie in a file: [begin, end)."""

    begin: int
    end: int


class Split(NamedTuple):
    """A model without the data of large weights, and where that is, by the initializer's number."""

    proto: bytes
    places: dict[int, ByteRange]


class _Field(NamedTuple):
    number: int
    kind: int
    start: int  # of its tag
    begin: int  # of its content
    end: int


def split(data: memoryview) -> Split:
    """Split a serialized ModelProto. CheckpointError where a field runs past what it is in."""
    places: dict[int, ByteRange] = {}
    count = 0
    model: list[bytes] = []
    for field in _fields(data, 0, len(data)):
        if field.number != GRAPH or field.kind != _LEN:
            model.append(bytes(data[field.start : field.end]))
            continue
        graph: list[bytes] = []
        for part in _fields(data, field.begin, field.end):
            if part.number != INITIALIZER or part.kind != _LEN:
                graph.append(bytes(data[part.start : part.end]))
                continue
            kept, place = _without_data(data, part)
            graph.append(kept)
            if place is not None:
                places[count] = place
            count += 1
        model.append(_message(GRAPH, b"".join(graph)))
    return Split(b"".join(model), places)


def _without_data(data: memoryview, tensor: _Field) -> tuple[bytes, ByteRange | None]:
    if tensor.end - tensor.begin < MIN_BYTES:
        return bytes(data[tensor.start : tensor.end]), None
    kept, place = [], None
    for field in _fields(data, tensor.begin, tensor.end):
        is_long = field.end - field.begin >= MIN_BYTES
        if field.number == RAW_DATA and field.kind == _LEN and is_long:
            place = ByteRange(field.begin, field.end)
        else:
            kept.append(bytes(data[field.start : field.end]))
    return _message(INITIALIZER, b"".join(kept)), place


def _fields(data: memoryview, begin: int, end: int) -> Iterator[_Field]:
    at = begin
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        first = at
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _LEN:
            length, first = _varint(data, at, end)
            at = first + length
        elif kind in (_I64, _I32):
            at += 8 if kind == _I64 else 4
        else:
            raise damaged(f"a field of kind {kind} at byte {start}")
        if at > end:
            raise damaged(f"a field at byte {start} ends at {at}, what it is in at {end}")
        yield _Field(number, kind, start, first, at)


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise damaged(f"a number that does not end at byte {at}")


def _message(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _LEN) + _number(len(content)) + content


def _number(value: int) -> bytes:
    text = bytearray()
    while value >= 0x80:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    text.append(value)
    return bytes(text)


def damaged(facts: str) -> CheckpointError:
    """The error for bytes that are no ONNX model."""
    return CheckpointError(
        "damaged or truncated ONNX file", facts=facts, fix="export it again, or copy it again"
    )
