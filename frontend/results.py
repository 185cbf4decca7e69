"""What a module returns, taken apart into tensors while it is traced and built again afterwards.

Torch's export takes containers that are registered with pytree; here dataclasses, and subclasses of
dict, are containers as well, and anything without tensors that cannot change is a constant.
"""

import copy
import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ..ir.errors import UnsupportedModel

Build: TypeAlias = Callable[[Sequence[Any]], Any]  # leaves in order -> what the module returns

_LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, type),
)


class Results:
    """Stands behind a module that is traced: `build` is there once it has returned.

    It stays None where torch does not call the module but its code, as for graph modules: these
    return containers that torch knows.
    """

    build: Build | None = None

    def __init__(self, module: torch.nn.Module):
        self._leaves: list[Any] = []
        module.register_forward_hook(self._take)  # after the module's own hooks

    def _take(self, module: torch.nn.Module, args: Any, output: Any) -> list[Any]:
        self._leaves = []
        self.build = self._part(output, "")
        return self._leaves

    def _part(self, value: Any, path: str) -> Build:
        if isinstance(value, _LEAVES):
            index = len(self._leaves)
            self._leaves.append(value)
            return lambda leaves: leaves[index]
        if isinstance(value, _CONSTANTS):
            return lambda _: value
        if isinstance(value, torch.Size):
            size = self._parts(list(value), path)
            return lambda leaves: torch.Size([build(leaves) for build in size])
        if isinstance(value, dict) and type(value) not in pytree.SUPPORTED_NODES:
            return self._dict(value, path)
        # a dataclass may be registered all the same, as transformers' outputs are
        if dataclasses.is_dataclass(value) and type(value) not in pytree.SUPPORTED_NODES:
            return self._dataclass(value, path)
        children, spec = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
        if children == [value] and spec.is_leaf():
            raise UnsupportedModel(
                f"the module returns a {type(value).__name__}",
                where=f"its result{path}",
                facts="results are tensors, numbers, text and None, in lists, tuples, dicts and"
                " dataclasses",
                fix="return the tensors, and make the object from them outside of the module",
            )
        parts = self._parts(children, path)
        return lambda leaves: pytree.tree_unflatten([build(leaves) for build in parts], spec)

    def _parts(self, values: Sequence[Any], path: str) -> list[Build]:
        return [self._part(value, f"{path}[{i}]") for i, value in enumerate(values)]

    def _dict(self, value: Any, path: str) -> Build:
        parts = {key: self._part(item, f"{path}[{key!r}]") for key, item in value.items()}
        empty = copy.copy(value)  # keeps the class and what else it has
        for key in parts:
            dict.__setitem__(empty, key, None)

        def build(leaves: Sequence[Any]) -> Any:
            new = copy.copy(empty)
            for key, part in parts.items():
                dict.__setitem__(new, key, part(leaves))
            return new

        return build

    def _dataclass(self, value: Any, path: str) -> Build:
        kind = type(value)
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        parts = {name: self._part(getattr(value, name), f"{path}.{name}") for name in names}

        def build(leaves: Sequence[Any]) -> Any:
            new = object.__new__(kind)  # its __post_init__ has run: the fields are what it left
            for name, part in parts.items():
                object.__setattr__(new, name, part(leaves))
            return new

        return build
