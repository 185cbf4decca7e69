"""What `compile` keeps of a module: its structure and attributes, and a digest of its values.

Values are not copied here: each program takes its own. What keeps programs that are made later from
taking others is a check that none has changed.
"""

import hashlib
from collections.abc import Container

import torch

from ..frontend.dtypes import FROM_TORCH, to_numpy
from ..frontend.structural_copy import require_weights, structural_copy
from ..ir.errors import UnsupportedModel, listed


class Snapshot:
    """A module as it is now: `module` is what to trace."""

    def __init__(self, module: torch.nn.Module):
        copied = structural_copy(module)
        self.module = copied.module
        self._tensors = copied.tensors
        require_weights(module, self._tensors.items())
        self._digests = {name: _digest(tensor) for name, tensor in self._tensors.items()}

    def check_unchanged(self, states: Container[str], why: str) -> None:
        """UnsupportedModel when values were written since, but for buffers that are states.

        `why` they are needed as they were.
        """
        changed = [
            name
            for name, tensor in self._tensors.items()
            if name not in states and _digest(tensor) != self._digests[name]
        ]
        if changed:
            raise UnsupportedModel(
                "the module's weights have changed since it was compiled",
                where=type(self.module).__name__,
                facts=f"{why}, and {len(changed)} of {len(self._tensors)} tensors have other values"
                f" now: {listed(changed, ', ')}",
                fix="compile the module again",
            )


def _digest(tensor: torch.Tensor) -> bytes:
    """A digest of all values; of a tensor that cannot be compiled, nothing."""
    if tensor.dtype not in FROM_TORCH or tensor.layout != torch.strided:
        return b""
    return hashlib.blake2b(to_numpy(tensor).reshape(-1).view("u1"), digest_size=16).digest()
