"""Functions of this process that programs may call by name, and the routines that come with us."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..ir.errors import DeviceError, listed

Function = Callable[..., Any]  # arrays -> an array, or a tuple of them

_REGISTERED: dict[str, Function] = {}


def register_function(name: str, function: Function) -> None:
    """Let programs call `function` as `name`: one registered before under that name is replaced.

    It gets NumPy arrays of its own, and returns an array or a tuple of arrays. It must be the same
    function of its arguments at each call; what it returns is checked for dtype and shape.
    """
    _REGISTERED[name] = function


def find_functions(program: str, names: Iterable[str]) -> dict[str, Function]:
    """The registered functions of these names; DeviceError naming all that are missing."""
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if name not in _REGISTERED]
    if missing:
        raise DeviceError(
            f"{program} calls {len(missing)} functions that this process has not registered",
            facts=listed(missing),
            fix="call tilewright.runtime.host_functions.register_function(name, function) first",
        )
    return {name: _REGISTERED[name] for name in names}


def find_routines(program: str, names: Iterable[str]) -> dict[str, Function]:
    """The routines of these names; DeviceError naming all that this version does not have."""
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if name not in ROUTINES]
    if missing:
        raise DeviceError(
            f"{program} uses {len(missing)} library routines that are not here",
            facts=f"{listed(missing)}\nthere are {', '.join(ROUTINES)}",
            fix="compile the program again with this version",
        )
    return {name: ROUTINES[name] for name in names}


def _nonzero(x: np.ndarray) -> np.ndarray:
    """Indices of the elements that are not zero: [count, rank], in row-major order."""
    return np.argwhere(x).astype(np.int64, copy=False)


ROUTINES: dict[str, Function] = {"numpy.nonzero": _nonzero}
