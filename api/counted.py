"""Weights whose look-ups are reported: how far packing, saving or placing them is, by bytes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..ir.progress import Progress
from ..ir.types import DType
from ..runtime.safetensors_file import facts_of


def counted(weights: Mapping[str, Any], stage: str, progress: Progress) -> Mapping[str, Any]:
    """The weights, with look-ups reported as `stage`, unless they are reported already."""
    if isinstance(weights, CountedWeights):
        return weights
    return CountedWeights(weights, stage, progress)


class CountedWeights(Mapping[str, Any]):
    """`weights`, which whoever writes or places them looks up once each, one after another."""

    def __init__(self, weights: Mapping[str, Any], stage: str, progress: Progress):
        self._weights, self._stage, self._progress = weights, stage, progress
        self._facts = facts_of(weights, weights)
        self._left = {n: math.prod(shape) * d.nbytes for n, (shape, d) in self._facts.items()}
        self._total = sum(self._left.values())

    def __getitem__(self, name: str) -> Any:
        array = self._weights[name]
        self._left.pop(name, None)
        self._progress(self._stage, self._total - sum(self._left.values()), self._total)
        return array

    def facts(self, name: str) -> tuple[tuple[int, ...], DType]:
        """Shape and dtype of one array, without looking it up."""
        return self._facts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights  # which is no look-up

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
