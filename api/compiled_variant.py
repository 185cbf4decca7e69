"""A program of a model with what it was made of, and how it is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..frontend.imported import Imported
from ..ir.target import Target
from ..ir.types import DTYPES
from ..passes import Pass
from ..passes.pipelines import dense
from ..runtime.device import Device
from ..runtime.executable import Executable
from .callable_module import ModuleProgram
from .compile_graph import Compiled, compile_graph


@dataclass(eq=False, kw_only=True)
class CompiledVariant(ModuleProgram):
    """A program with what it was made of."""

    compiled: Compiled
    states: Mapping[str, np.ndarray]  # first values of buffers that the module writes


def pipeline_of(options: Mapping[str, Any]) -> tuple[Pass, ...]:
    """The passes that `compile` runs with these options."""
    narrow = options.get("weights_dtype")
    return dense(None if narrow is None else DTYPES[narrow])


def make_variant(
    imported: Imported, target: Target, options: Mapping[str, Any], device: Device | None
) -> CompiledVariant:
    """Compile an imported module, and place it on `device` where that is here."""
    compiled = compile_graph(imported.graph, imported.weights, pipeline_of(options), target)
    executable = None
    if device is not None:
        executable = Executable(
            compiled.program,
            compiled.weights,
            device,
            states=imported.states,
            borrow_weights=False,
        )
    return CompiledVariant(
        program=compiled.program,
        signature=imported.signature,
        executable=executable,
        compiled=compiled,
        states=imported.states,
    )
