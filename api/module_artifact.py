"""The artifact of a compiled module: its programs, with weights and states that they share."""

from collections.abc import Sequence
from inspect import Signature
from typing import Any

import numpy as np

from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..runtime.artifact import Artifact
from ..runtime.stored_program import StoredProgram
from . import cache


def module_artifact(
    name: str, parameters: Signature, variants: Sequence[Any], last: Any
) -> Artifact:
    """`variants` are CompiledVariants of one module; `last` is the one whose states count."""
    weights: dict[str, LazyArray] = {}  # of all programs, those that are equal once
    programs = []
    for variant in variants:
        others = {}
        for buffer in variant.program.weights:
            kept = _keep(weights, buffer.name, _weight_of(variant, buffer.name))
            if kept != buffer.name:
                others[buffer.name] = kept
        graph = variant.compiled.graph_text
        programs.append(StoredProgram(variant.program, graph, variant.signature, others))
    return Artifact(
        tuple(programs),
        LazyArrays(weights),
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


def _keep(weights: dict[str, LazyArray], name: str, array: LazyArray) -> str:
    """Add an array, unless an equal one is there. -> the name that it has in `weights`."""
    kept, number = name, 0
    while kept in weights and not _is_same(weights[kept], array):
        number += 1
        kept = f"{name}@{number}"
    weights.setdefault(kept, array)
    return kept


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
