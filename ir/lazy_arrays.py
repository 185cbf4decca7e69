"""Arrays by name, each with a way to get it, so that a model never lies in memory twice."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .types import DType, dtype_of


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
        return array if array.shape == self.shape else array.reshape(self.shape)

    def astype(self, dtype: DType) -> "LazyArray":
        """The same array in another dtype."""
        return replace(self, dtype=dtype)


def in_memory(array: np.ndarray) -> LazyArray:
    """A `LazyArray` over data already in memory; raises `TypeError` for a dtype we lack."""
    dtype = dtype_of(array.dtype)
    if dtype is None:
        raise TypeError(f"arrays of {array.dtype} have no counterpart in the graph")
    return LazyArray(array.shape, dtype, lambda: array)


class LazyArrays(Mapping[str, np.ndarray]):
    """A mapping from names to arrays that are loaded at each look-up, one at a time.

    `lazy(name)` tells shape and dtype without loading.
    """

    def __init__(self, arrays: Mapping[str, LazyArray]):
        self._arrays = dict(arrays)

    @staticmethod
    def of(arrays: Mapping[str, Any], names: Iterable[str] | None = None) -> "LazyArrays":
        """The named arrays of any mapping, all by default; one that is lazy stays so."""
        names = arrays if names is None else names
        if isinstance(arrays, LazyArrays):
            return LazyArrays({name: arrays.lazy(name) for name in names})
        return LazyArrays({name: in_memory(np.asarray(arrays[name])) for name in names})

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays  # a look-up would load the array

    def lazy(self, name: str) -> LazyArray:
        """Shape, dtype and loader of one array."""
        return self._arrays[name]

    def lazy_items(self) -> Iterable[tuple[str, LazyArray]]:
        """Names and arrays, in order and not loaded."""
        return self._arrays.items()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self._arrays.values())
