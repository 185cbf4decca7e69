"""Tilewright compiles neural networks for inference: any model in, generated kernels out.

Importing this module loads nothing heavy: each public name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# public name -> the module that defines it
_HOMES = {
    "compile": "api.compile_model",
    "import_onnx": "api.compile_model",
    "load": "api.loaded_module",
    "LLM": "api.language_model",
    "SamplingParams": "runtime.engine.sampling_params",
    **dict.fromkeys(
        [
            "ArtifactError",
            "BuildError",
            "CheckpointError",
            "DeviceError",
            "DimError",
            "DivisionByZero",
            "IndexOutOfRange",
            "OptionError",
            "OutOfMemory",
            "OutOfPages",
            "ParseError",
            "PassError",
            "RequestError",
            "ShapeError",
            "TilewrightError",
            "UnsupportedModel",
            "UnsupportedOp",
            "VerifyError",
            "WrongResult",
        ],
        "ir.errors",
    ),
}

__all__ = ["__version__", *sorted(_HOMES)]  # resolved by __getattr__

if TYPE_CHECKING:
    from .api.compile_model import compile, import_onnx
    from .api.language_model import LLM
    from .api.loaded_module import load
    from .ir.errors import (
        ArtifactError,
        BuildError,
        CheckpointError,
        DeviceError,
        DimError,
        DivisionByZero,
        IndexOutOfRange,
        OptionError,
        OutOfMemory,
        OutOfPages,
        ParseError,
        PassError,
        RequestError,
        ShapeError,
        TilewrightError,
        UnsupportedModel,
        UnsupportedOp,
        VerifyError,
        WrongResult,
    )
    from .runtime.engine.sampling_params import SamplingParams


def __getattr__(name: str):
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value  # later uses do not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
