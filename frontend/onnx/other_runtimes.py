"""Other runtimes for ONNX models, which a program's outputs are compared with."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from ...ir.errors import UnsupportedModel, told

Run = Callable[[Mapping[str, np.ndarray]], Sequence[Any]]


def run_elsewhere(path: str) -> tuple[str, Run]:
    """Another runtime's name, and what gives its outputs for arrays by the names of inputs.

    onnxruntime on the CPU where it is installed, else the reference of the package onnx.
    UnsupportedModel where it does not take the model.
    """
    name = "onnxruntime" if find_spec("onnxruntime") is not None else "the reference of onnx"
    try:
        if name == "onnxruntime":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4  # what it refuses is told below
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(path, options, providers=providers)
            return name, lambda arrays: session.run(None, dict(arrays))
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(path)
        return name, lambda arrays: evaluator.run(None, dict(arrays))
    except Exception as error:  # the libraries' own classes
        raise UnsupportedModel(
            f"{name} does not take the model, so there is nothing to compare with",
            where=path,
            facts=told(error),
            fix="check the model: onnx.checker.check_model(path)",
        ) from error
