"""The artifact of a compiled module: its programs, with weights and states that they share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.signature import Parameter
from ..ir.types import DType
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
        weights,
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


class SharedWeights(Mapping[str, np.ndarray]):
    """Weights of several programs, those that are equal once. Each is computed when looked up."""

    def __init__(self) -> None:
        self._load: dict[str, Callable[[], np.ndarray]] = {}
        self._facts: dict[str, tuple[tuple[int, ...], DType]] = {}

    def add(self, variant: Any) -> dict[str, str]:
        """Take a program's weights. -> for each the name it has here."""
        names = {}
        for buffer in variant.program.weights:
            load, facts = _loader(variant, buffer.name)
            kept, number = buffer.name, 0
            while kept in self._load and not self._is_same(kept, load, facts):
                number += 1
                kept = f"{buffer.name}@{number}"
            self._load.setdefault(kept, load)
            self._facts.setdefault(kept, facts)
            names[buffer.name] = kept
        return names

    def _is_same(
        self, kept: str, load: Callable[[], np.ndarray], facts: tuple[tuple[int, ...], DType]
    ) -> bool:
        if self._facts[kept] != facts:
            return False
        ours, theirs = (
            np.ascontiguousarray(a).reshape(-1).view("u1") for a in (self[kept], load())
        )
        return bool(np.array_equal(ours, theirs))

    def facts(self, name: str) -> tuple[tuple[int, ...], DType]:
        """Shape and dtype of one array, without computing it."""
        return self._facts[name]

    def __getitem__(self, name: str) -> np.ndarray:
        return self._load[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._load  # a look-up would compute the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._load)

    def __len__(self) -> int:
        return len(self._load)


def _loader(
    variant: Any, name: str
) -> tuple[Callable[[], np.ndarray], tuple[tuple[int, ...], DType]]:
    """A weight as it lies on the device; where no device is, computed from the module's."""
    if variant.executable is None:
        weights = variant.compiled.weights
        return lambda: weights[name], weights.facts(name)
    array = variant.executable.weights[name]
    return array.numpy, (array.shape, array.dtype)
