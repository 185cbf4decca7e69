"""Routines of libraries that come with the runtime, by the names that programs call them by."""

from collections.abc import Iterable

import numpy as np

from ..ir.host_functions import Function, find_named


def find_routines(program: str, names: Iterable[str]) -> dict[str, Function]:
    """The routines of these names; DeviceError naming all that this version does not have."""
    return find_named(
        ROUTINES,
        names,
        f"{program} uses {{}} library routines that are not here",
        f"compile the program again with this version, which has {', '.join(ROUTINES)}",
    )


def _nonzero(x: np.ndarray) -> np.ndarray:
    """Indices of the elements that are not zero: [count, rank], in row-major order."""
    return np.argwhere(x).astype(np.int64, copy=False)


ROUTINES: dict[str, Function] = {"numpy.nonzero": _nonzero}
