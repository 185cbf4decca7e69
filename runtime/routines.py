"""Routines of libraries that come with the runtime, by the names that programs call them by."""

from collections.abc import Iterable

import numpy as np

from ..ir.errors import DeviceError, listed
from ..ir.host_functions import Function


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
