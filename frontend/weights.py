"""Weights as names with a way to get each array, so that a model never lies in memory twice."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..ir.types import DType, dtype_of


@dataclass(frozen=True)
class LazyArray:
    """One array of known shape and dtype; `load` reads, unpacks and casts it."""

    shape: tuple[int, ...]
    dtype: DType
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the loaded array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.nbytes

    def load(self) -> np.ndarray:
        """The array, C-contiguous, of this shape and dtype. Not kept: each call reads again."""
        array = np.ascontiguousarray(self.read().astype(self.dtype.numpy, copy=False))
        # ascontiguousarray makes a vector of a scalar
        return array.reshape(self.shape)

    def astype(self, dtype: DType) -> "LazyArray":
        """The same array in another dtype."""
        return replace(self, dtype=dtype)


def array_weight(array: np.ndarray) -> LazyArray:
    """A `LazyArray` over data already in memory; raises `TypeError` for a dtype we lack."""
    dtype = dtype_of(array.dtype)
    if dtype is None:
        raise TypeError(f"arrays of {array.dtype} have no counterpart in the graph")
    return LazyArray(array.shape, dtype, lambda: array)


class Weights(Mapping[str, np.ndarray]):
    """A mapping from weight names to arrays that are loaded at each look-up.

    `lazy(name)` tells shape and dtype without loading; `items()` loads one array at a time.
    """

    def __init__(self, arrays: Mapping[str, LazyArray]):
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def lazy(self, name: str) -> LazyArray:
        """Shape, dtype and loader of one weight."""
        return self._arrays[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights together."""
        return sum(array.nbytes for array in self._arrays.values())
