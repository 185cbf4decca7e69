"""What a contraction sums over and what becomes of the sums, as data."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .scalar import Scalar, evaluate_scalar, parse_scalar


@dataclass(frozen=True)
class Contraction:
    """acc_i[..., m, n] = the sum over k of x[..., m, k] * w_i[..., k, n], for each w.

    `x` and `ws` name the last two axes of the operands in the order in which they lie ("mk"; "kn",
    or "nk" as linear layers store it); leading axes broadcast. The result is `epilogue`, in the
    scalar language, over acc0, acc1, ...
    """

    x: str = "mk"
    ws: tuple[str, ...] = ("kn",)
    epilogue: str = "acc0"

    @cached_property
    def tree(self) -> Scalar:
        """The epilogue, parsed."""
        return parse_scalar(self.epilogue, tuple(f"acc{i}" for i in range(len(self.ws))), ())

    def of(self, x: np.ndarray, *ws: np.ndarray) -> np.ndarray:
        """The reference."""
        x = _ordered(x, self.x, "mk")
        sums = (x @ _ordered(w, roles, "kn") for w, roles in zip(ws, self.ws, strict=True))
        return evaluate_scalar(self.tree, {f"acc{i}": acc for i, acc in enumerate(sums)}, {})


def _ordered(array: np.ndarray, roles: str, wanted: str) -> np.ndarray:
    return array if roles == wanted else np.swapaxes(array, -1, -2)
