"""Other runtimes for ONNX models, which a program's outputs are compared with."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx

from ...ir.errors import UnsupportedModel, told
from ...ir.types import DType, f32

Run = Callable[[Mapping[str, np.ndarray]], Sequence[Any]]


def run_elsewhere(path: str, stored: DType = f32) -> tuple[str, Run]:
    """Another runtime's name, and what gives its outputs for arrays by the names of inputs.

    onnxruntime on the CPU where it is installed, else the reference of the package onnx. Matrices
    of float32 are rounded to `stored`. UnsupportedModel where it does not take the model.
    """
    name = "onnxruntime" if find_spec("onnxruntime") is not None else "the reference of onnx"
    try:
        source = path if stored == f32 else _rounded(path, stored).SerializeToString()
        if name == "onnxruntime":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4  # what it refuses is told below
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(source, options, providers=providers)
            return name, lambda arrays: session.run(None, dict(arrays))
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(source)
        return name, lambda arrays: evaluator.run(None, dict(arrays))
    except Exception as error:  # the libraries' own classes
        raise UnsupportedModel(
            f"{name} does not take the model, so there is nothing to compare with",
            where=path,
            facts=told(error),
            fix="check the model: onnx.checker.check_model(path)",
        ) from error


def _rounded(path: str, stored: DType) -> onnx.ModelProto:
    """The model with its matrices rounded to a dtype, and stored as they were."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        is_matrix = len(tensor.dims) > 1 and min(tensor.dims[-2:]) > 1
        if is_matrix and tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(stored.numpy).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model
