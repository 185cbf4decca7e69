"""Damaged ONNX models through `import_onnx`: no crash, no error that is not ours, no other file.

`python -m tilewright.tests.onnx.mutations --count 10000` makes so many from ONNX's own tests, each
in a folder of its own, and counts what became of them. Case i of a seed is always the same.
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import ModelProto, NodeProto, TensorProto

from tilewright.frontend.onnx.import_model import import_onnx
from tilewright.ir.errors import TilewrightError

from .backend import DATA, node_cases

MAX_BYTES = 50_000  # of the models that are damaged
SECONDS = 20  # of one import
MEMORY = 8 << 30
NUMBERS = (-1, 0, 1, 2, 3, 7, 16, 255, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 0.5, 1e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "x", "\0", "é" * 40, "n" * 5000, "../x", "1", "ai.onnx", "ai.onnx.ml", "x+1", "min")
PLACES = (
    *("../secret.bin", "/etc/passwd", "a/../../secret.bin", "", ".", "..", "\0", "w" * 5000),
    *("link.bin", "weights.bin/../../secret.bin", "missing.bin", "folder", "//etc/passwd"),
)
SPANS = (("offset", NUMBERS), ("length", NUMBERS), ("offset", ("x", "", "1e3", "٣", "0x10")))


# ---- damage ----------------------------------------------------------------------------------


def _flipped(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _without_part(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 40) :]


def _with_part(rng: random.Random, data: bytes) -> bytes:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    part = rng.choice((data[start : start + rng.randrange(1, 40)], rng.randbytes(9)))
    return data[:at] + part + data[at:]


BYTES = (_flipped, _cut, _without_part, _with_part)


class Place(NamedTuple):
    """A field of a message that is set; `index` is that of an element where it has many."""

    message: Any
    field: Any
    index: int | None

    @property
    def value(self) -> Any:
        value = getattr(self.message, self.field.name)
        return value if self.index is None else value[self.index]


def _places(message: Message) -> Iterator[Place]:
    for field, value in message.ListFields():
        many = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        for index in range(len(value)) if many else (None,):
            place = Place(message, field, index)
            yield place
            if isinstance(place.value, Message):
                yield from _places(place.value)


def _removed(rng: random.Random, model: ModelProto) -> None:
    place = rng.choice(list(_places(model)))
    if place.index is None:
        place.message.ClearField(place.field.name)
    else:
        del getattr(place.message, place.field.name)[place.index]


def _doubled(rng: random.Random, model: ModelProto) -> None:
    many = [place for place in _places(model) if place.index is not None]
    place = rng.choice(many)
    elements = getattr(place.message, place.field.name)
    elements.extend([place.value] * rng.choice((1, 1, 3)))


def _exchanged(rng: random.Random, model: ModelProto) -> None:
    """A message, text or number in place of another of its type."""
    places = list(_places(model))
    one = rng.choice(places)
    kinds = [
        p for p in places if type(p.value) is type(one.value) and p.field.type == one.field.type
    ]
    _set(one, rng.choice(kinds).value)


def _changed(rng: random.Random, model: ModelProto) -> None:
    """A number or a text that is not the model's."""
    place = rng.choice([p for p in _places(model) if isinstance(p.value, int | float | str)])
    choices = {int: NUMBERS, float: FLOATS, str: (*TEXTS, *_OPERATORS)}[type(place.value)]
    _set(place, rng.choice(choices))


def _set(place: Place, value: Any) -> None:
    try:
        if isinstance(value, Message):
            copy = type(value)()
            copy.CopyFrom(value)
            place.value.CopyFrom(copy)
        elif place.index is None:
            setattr(place.message, place.field.name, value)
        else:
            getattr(place.message, place.field.name)[place.index] = value
    except (ValueError, TypeError):
        place.message.ClearField(place.field.name)  # out of the field's range


def _in_a_circle(rng: random.Random, model: ModelProto) -> None:
    nodes = [node for node in model.graph.node if node.input and node.output]
    if nodes:
        node = rng.choice(nodes)
        node.input[rng.randrange(len(node.input))] = rng.choice(rng.choice(nodes).output)


def _other_operator(rng: random.Random, model: ModelProto) -> None:
    nodes = [place.value for place in _places(model) if isinstance(place.value, NodeProto)]
    if nodes:
        rng.choice(nodes).op_type = rng.choice(_OPERATORS)


def _data_elsewhere(rng: random.Random, model: ModelProto) -> None:
    """An initializer as external data: of a place that is not there, or is not the model's."""
    graph = model.graph
    if not graph.initializer:
        tensor = onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "weight")
        graph.initializer.append(tensor)
    tensor = rng.choice(graph.initializer)
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": rng.choice((*PLACES, "weights.bin"))}
    if rng.random() < 0.7:
        key, choices = rng.choice(SPANS)
        entries[key] = str(rng.choice(choices))
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


FIELDS: tuple[Callable[[random.Random, ModelProto], None], ...] = (
    *(_removed, _doubled, _exchanged, _changed, _in_a_circle, _other_operator, _data_elsewhere),
)
_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})


def damaged(rng: random.Random, model: bytes) -> tuple[str, bytes]:
    """What was done, and the bytes of the model after it."""
    change = rng.choice((*BYTES, *FIELDS * 2))
    if change in BYTES:
        return change.__name__, change(rng, model)
    proto = ModelProto.FromString(model)
    for _ in range(rng.choice((1, 1, 1, 3))):
        change(rng, proto)
    try:
        return change.__name__, proto.SerializeToString()
    except (EncodeError, ValueError, DecodeError):
        return "_flipped", _flipped(rng, model)


# ---- runs ------------------------------------------------------------------------------------


class Watch:
    """Notes every file that is opened, and every change of the file system, in between."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open" and isinstance(args[0], str | bytes):
            path = Path(os.fsdecode(args[0]))
            writes = bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) if args[2] else False
            is_code = path.suffix in (".py", ".pyc", ".so")
            inside = path.resolve().is_relative_to(self.folder)
            if writes or not (inside or is_code):
                self.seen.append(f"{event} {path}")
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.system"):
            self.seen.append(f"{event} {args[0]}")
        elif event in ("subprocess.Popen", "socket.connect"):
            self.seen.append(event)


def models(full: bool) -> list[bytes]:
    """What is damaged: ONNX's stored tests, with `full` those of single operators too."""
    stored = sorted((DATA / "simple").glob("**/*.onnx")) + sorted(DATA.glob("pytorch-*/**/*.onnx"))
    found = [path.read_bytes() for path in stored]
    if full:
        found += [case.model.SerializeToString() for case in node_cases()]
    return [data for data in found if 0 < len(data) <= MAX_BYTES]


def run(
    models: Sequence[bytes], cases: range, seed: int, folder: Path
) -> tuple[Counter[str], list[str]]:
    """Import damaged models and read their weights. -> what became of them, and every fault."""
    watch, counts = Watch(), Counter[str]()
    faults: list[str] = []
    inside = folder / "model"
    (inside / "folder").mkdir(parents=True)
    (folder / "secret.bin").write_bytes(b"secret" * 100)
    (inside / "weights.bin").write_bytes(bytes(4096))
    (inside / "link.bin").symlink_to(folder / "secret.bin")
    signal.signal(signal.SIGALRM, _too_long)
    for number in cases:
        rng = random.Random(seed * 1_000_003 + number)
        how, data = damaged(rng, rng.choice(models))
        path = inside / "model.onnx"
        path.write_bytes(data)
        if sys.stderr.isatty():  # where it crashes, this is the case
            print(number, end="\r", file=sys.stderr, flush=True)
        signal.alarm(SECONDS)
        watch.folder, watch.seen = inside.resolve(), []
        try:
            weights = import_onnx(path).weights
            for name in weights:
                weights[name]
            result = "imported"
        except TilewrightError as error:
            result = type(error).__name__
        except BaseException as error:  # noqa: BLE001  a fault, whatever it is
            result = "fault"
            faults.append(f"case {number}, {how}: {type(error).__name__}: {str(error)[:200]}")
        finally:
            watch.folder = None
            signal.alarm(0)
        if watch.seen:
            faults.append(f"case {number}, {how}: {watch.seen}")
        counts[result] += 1
    return counts, faults


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"over {SECONDS} s")


def main() -> None:
    """Run cases; the exit status is 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stored", action="store_true", help="of stored models alone")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    start = time.perf_counter()
    found = models(full=not given.stored)
    cases = range(given.first, given.first + given.count)
    with tempfile.TemporaryDirectory() as folder:
        counts, faults = run(found, cases, given.seed, Path(folder))
    print("\n".join(faults))
    print(f"{given.count} of {len(found)} models in {time.perf_counter() - start:.0f} s:", end=" ")
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
