"""Weights whose look-ups are reported: how far packing, saving or placing them is, by bytes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.progress import Progress


def counted(weights: Mapping[str, Any], stage: str, progress: Progress) -> LazyArrays:
    """The weights, with look-ups reported as `stage`, unless they are reported already."""
    if isinstance(weights, CountedWeights):
        return weights
    return CountedWeights(weights, stage, progress)


class CountedWeights(LazyArrays):
    """`weights`, which whoever writes or places them looks up once each, one after another."""

    def __init__(self, weights: Mapping[str, Any], stage: str, progress: Progress):
        arrays = LazyArrays.of(weights)
        left, total = {name: array.nbytes for name, array in arrays.lazy_items()}, arrays.nbytes

        def read(name: str, array: LazyArray) -> np.ndarray:
            found = array.load()
            left.pop(name, None)
            progress(stage, total - sum(left.values()), total)
            return found

        super().__init__(
            {n: replace(a, read=lambda n=n, a=a: read(n, a)) for n, a in arrays.lazy_items()}
        )
