"""`compile`: a callable that runs generated kernels, whatever kind of model it is made of."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..ir.errors import OptionError
from .records import Records

if TYPE_CHECKING:
    from ..frontend.imported import Imported
    from .compile_onnx import CompiledOnnx
    from .compiled_module import CompiledModule


def compile(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str = "auto",
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    records: Records = None,
) -> "CompiledModule | CompiledOnnx":
    """A callable with the model's signature that runs generated kernels.

    `model` is a torch.nn.Module or torch.export.ExportedProgram: see `api.compile_module.compile`.
    Or it is the path of an ONNX file, or an onnx.ModelProto: the callable takes its inputs by
    position or by name, and returns the list of its outputs in the model's order, in the array kind
    that it was given (NumPy, torch, or what takes DLPack). It is compiled now for the shapes that
    the model declares, axes of one name being one dim. Where sizes are not proved to go together
    so, it is compiled at a call, for that call's sizes; where the numbers of an input decide what
    the graph is (a shape, an axis, a count), for those numbers: with `example_inputs` now. At most
    8 programs are kept. For an ONNX model `dynamic_shapes` gives shapes in place of the declared
    ones, by input: {"image": ("batch", 3, 480, 640)}. What no kernel computes (ai.onnx.ml, Det) is
    left to ONNX's reference or NumPy, called on the host; with `strict` it is an error. `records`
    is the file of tuning records that schedules are from, "none" for the default ones; else the
    user's own (docs/tuning.md).
    """
    is_path = isinstance(model, str | os.PathLike)
    if is_path or type(model).__name__ == "ModelProto":
        require_onnx()
        from .compile_onnx import compile_onnx

        return compile_onnx(
            model,
            example_inputs,
            shapes=dynamic_shapes,
            target=target,
            strict=strict,
            options=options,
            records=records,
        )
    from .compile_module import compile as compile_module

    return compile_module(
        model,
        example_inputs,  # type: ignore[arg-type]
        dynamic_shapes=dynamic_shapes,
        target=target,
        strict=strict,
        options=options,
        records=records,
    )


def import_onnx(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    values: Mapping[str, Any] | None = None,
) -> "Imported":
    """The graph of an ONNX file (a path) or of an onnx.ModelProto, with its weights.

    `shapes` gives inputs shapes in place of the declared ones, of numbers and names of dims;
    `values` numbers, which are compiled in. See `frontend.onnx.import_model.import_onnx`.
    """
    require_onnx()
    from ..frontend.onnx.import_model import import_onnx

    return import_onnx(source, shapes=shapes, values=values)


def require_onnx() -> None:
    """OptionError where the package that reads ONNX models is not installed."""
    if find_spec("onnx") is None:
        raise OptionError(
            "reading an ONNX model needs the package onnx",
            fix="pip install 'tilewright[onnx]'",
        )
