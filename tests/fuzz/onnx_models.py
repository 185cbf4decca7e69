"""Damaged ONNX models: their bytes, and what the protobuf says."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from .check import Check, refused
from .mutate import NUMBERS, TEXTS, damaged_bytes

_WHOLE = [n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63]


def onnx_model(folder: Path) -> Check:
    """Models of many operators, with sub-graphs, a function and external data."""
    import onnx

    from tilewright.frontend.onnx.import_model import import_onnx

    whole = sample()
    path = folder / "model.onnx"
    onnx.save(whole, path, save_as_external_data=True, location="data", size_threshold=1000)
    data, stored = path.read_bytes(), (folder / "data").read_bytes()
    whole = onnx.load(path, load_external_data=False)
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas()})

    def check(seed: int) -> bool:
        rng = random.Random(seed)
        (folder / "data").write_bytes(stored)
        if rng.random() < 0.4:
            path.write_bytes(damaged_bytes(data, rng))
        elif rng.random() < 0.1:
            path.write_bytes(data)
            (folder / "data").write_bytes(damaged_bytes(stored, rng))
        else:
            model = onnx.ModelProto()
            model.CopyFrom(whole)
            for _ in range(rng.choice([1, 1, 2, 4])):
                damage(model, rng, names)
            path.write_bytes(model.SerializeToString())

        def read():
            imported = import_onnx(path)
            str(imported.graph)
            return [array.nbytes for array in imported.weights.values()]

        return refused(read)

    return check


def sample() -> Any:
    """A model whose parts are easily broken: shapes computed, branches, a function, a slice."""
    from onnx import TensorProto, helper, numpy_helper

    node, f32 = helper.make_node, TensorProto.FLOAT

    def value(name, shape=None):
        return helper.make_tensor_value_info(name, f32, shape)

    def branch(name, op):
        return helper.make_graph([node(op, ["act"], [name])], name, [], [value(name)])

    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Concat", ["rows", "four", "minus"], ["wanted"], axis=0),
        node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5),
        node("Reshape", ["y", "wanted"], ["split"], name="split"),
        node("Transpose", ["split"], ["turned"], perm=[0, 2, 1]),
        node("Slice", ["turned", "zero", "four", "axes"], ["part"]),
        node("Pad", ["part", "pads"], ["wide"], mode="constant"),
        node("Twice", ["wide"], ["twice"], domain="own"),
        node("LeakyRelu", ["twice"], ["act"], alpha=0.1),
        node("ReduceSum", ["act", "axes"], ["total"], keepdims=0),
        node("Greater", ["total", "limit"], ["above"]),
        node("Cast", ["above"], ["number"], to=f32),
        node("Split", ["act"], ["left", "right"], axis=1, num_outputs=2),
        node("Einsum", ["left", "right"], ["mixed"], equation="bij,bkj->bik"),
    ]
    arrays = {
        "w": np.ones((32, 16), np.float32),
        "b": np.ones(32, np.float32),
        "zero": np.int64([0]),
        "four": np.int64([4]),
        "minus": np.int64([-1]),
        "axes": np.int64([1]),
        "pads": np.int64([0, 1, 0, 0, 1, 0]),
        "limit": np.float32(0.5),
    }
    graph = helper.make_graph(
        nodes,
        "sample",
        [value("x", ["batch", 16])],
        [value("mixed"), value("number")],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    twice = helper.make_function(
        "own", "Twice", ["a"], ["c"], [node("Add", ["a", "a"], ["c"])], opsets[:1]
    )
    return helper.make_model(graph, opset_imports=opsets, functions=[twice])


def damage(model: Any, rng: random.Random, names: list[str]) -> None:
    """One change of a field of one message of the model."""
    message = rng.choice(list(_messages(model)))
    fields = [f for f in message.DESCRIPTOR.fields if f.name not in ("doc_string", "raw_data")]
    present = [f for f, _ in message.ListFields() if f in fields]
    field = rng.choice(present if present and rng.random() < 0.8 else fields)
    repeated = getattr(field, "is_repeated", False)
    if repeated:
        items = getattr(message, field.name)
        if len(items) and rng.random() < 0.3:
            del items[rng.randrange(len(items))]
        elif len(items) and field.message_type is not None:
            items.add().CopyFrom(rng.choice(list(items)))
        elif field.message_type is None:
            items.append(_scalar(field, rng, names))
            if len(items) > 1 and rng.random() < 0.5:
                items[0], items[-1] = items[-1], items[0]
    elif field.message_type is not None:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, rng, names))


def _messages(message: Any) -> Any:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if getattr(field, "is_repeated", False) else [value]:
                yield from _messages(part)


def _scalar(field: Any, rng: random.Random, names: list[str]) -> Any:
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type in (field.CPPTYPE_STRING,):
        text = rng.choice([*TEXTS, *names, "x", "y", "rows", "shape", "part", "-1", "9" * 30])
        data = text.encode("utf-8", "replace")
        return data if field.type == field.TYPE_BYTES else data.decode("utf-8", "replace")
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
    wide = field.cpp_type == field.CPPTYPE_INT64
    unsigned = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    numbers = [*range(-3, 25), *(_WHOLE if wide else ())]
    return rng.choice([abs(n) if unsigned else n for n in numbers])
