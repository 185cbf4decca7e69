"""Functions of torch that are traced as others, or not at all."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ..ir.errors import UnsupportedModel
from .recurrent_hook import RECURRENT


class Replaced(TorchFunctionMode):
    """Functions of torch whose trace would assume something of values, or leave something open."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def _narrow(input: Any, dim: int, start: Any, length: Any) -> Any:
    """narrow(x, dim, start, length) whose start is a tensor, as a choice of the rows by index.

    Torch would read the start's value, which a trace has not; indices are checked as all are.
    """
    if not isinstance(start, torch.Tensor):
        return torch.narrow(input, dim, start, length)
    # the first row counts from the end where it is negative; the rows after it follow
    first = torch.where(start < 0, start + input.shape[dim], start)
    rows = first + torch.arange(length, device=input.device)
    return torch.index_select(input, dim, rows)


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention has a value for each key: torch computes with that and makes no condition of it.

    It is traced as one operation; of the kernels that torch could take for it only this one's
    choice asks no size that depends on data.
    """
    keys, values = key.shape[-2], value.shape[-2]
    torch._check(keys == values, lambda: f"{keys} keys have {values} values")
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, *args, **kwargs)


def _gradients(*_: Any, **__: Any) -> Any:
    raise UnsupportedModel(
        "the module computes gradients in its forward method",
        facts="a program is traced without them",
        fix='use torch.compile(module, backend="tilewright"), which leaves them to PyTorch',
    )


def _linear_cross_entropy(*args: Any, options: Any = None, **kwargs: Any) -> Any:
    """Its options say in which pieces torch computes it, in an operation that no table has."""
    return F.linear_cross_entropy(*args, **kwargs)


_REPLACED: dict[Any, Any] = {
    torch.narrow: _narrow,
    torch.Tensor.narrow: _narrow,
    F.scaled_dot_product_attention: _attention,
    **RECURRENT,
    **dict.fromkeys(
        (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward), _gradients
    ),
}
if hasattr(F, "linear_cross_entropy"):  # torch 2.13 has it, 2.11 does not
    _REPLACED[F.linear_cross_entropy] = _linear_cross_entropy
