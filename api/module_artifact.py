"""The artifact of a compiled module: its programs, with weights and states that they share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.signature import Parameter
from ..runtime.artifact import Artifact
from ..runtime.stored_program import StoredProgram
from . import cache


def module_artifact(
    name: str, parameters: tuple[Parameter, ...], variants: Sequence[Any], last: Any
) -> Artifact:
    """`variants` are CompiledVariants of one module; `last` is the one whose states count."""
    weights = SharedWeights()
    programs = []
    for variant in variants:
        names = weights.add(variant)
        others = {name: kept for name, kept in names.items() if name != kept}
        graph = variant.compiled.graph_text
        programs.append(StoredProgram(variant.program, graph, variant.signature, others))
    return Artifact(
        tuple(programs),
        LazyArrays(weights.arrays),
        parameters,
        facts={
            "module": name,
            "libraries": cache.libraries(),
            "programs": [
                {
                    "passes": variant.compiled.report.to_json(),
                    "fallback_ops": variant.compiled.fallback_ops,
                }
                for variant in variants
            ],
        },
        states=_states_of(last),
    )


def _states_of(variant: Any) -> dict[str, np.ndarray]:
    if variant.executable is None:
        return dict(variant.states.items())
    return {name: array.numpy().copy() for name, array in variant.executable.states.items()}


class SharedWeights:
    """Weights of several programs, those that are equal once."""

    def __init__(self) -> None:
        self.arrays: dict[str, LazyArray] = {}

    def add(self, variant: Any) -> dict[str, str]:
        """Take a program's weights. -> for each the name it has here."""
        names = {}
        for buffer in variant.program.weights:
            array = _weight_of(variant, buffer.name)
            kept, number = buffer.name, 0
            while kept in self.arrays and not _is_same(self.arrays[kept], array):
                number += 1
                kept = f"{buffer.name}@{number}"
            self.arrays.setdefault(kept, array)
            names[buffer.name] = kept
        return names


def _is_same(one: LazyArray, other: LazyArray) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    ours, theirs = (array.load().reshape(-1).view("u1") for array in (one, other))
    return bool(np.array_equal(ours, theirs))


def _weight_of(variant: Any, name: str) -> LazyArray:
    """A weight as it lies on the device; where no device is, computed from the module's."""
    if variant.executable is None:
        return variant.compiled.weights.lazy(name)
    array = variant.executable.weights[name]
    return LazyArray(array.shape, array.dtype, array.numpy)
