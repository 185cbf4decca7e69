"""A module copied without its weights: own structure and attributes, shared memory of tensors.

Tracing swaps parameters and buffers and runs `forward`, which may set attributes. Done to a copy,
nobody who uses the module meanwhile sees any of it, and what is done to the module later does not
reach the copy: but for writes into the memory of its tensors.
"""

import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..ir.errors import UnsupportedModel, listed

_OF_A_MODULE = ("_parameters", "_buffers", "_modules")  # no part of the names of what they hold


class StructuralCopy:
    """The copy of one module, and its tensors: `module`, and `tensors` by their paths."""

    def __init__(self, module: torch.nn.Module):
        self.tensors: dict[str, torch.Tensor] = {}
        self._done: dict[int, Any] = {}  # id of an original -> its copy
        self._originals: list[Any] = []  # kept alive: an id is good as long as its object
        self.module = self._copy(module, "")

    def _copy(self, value: Any, path: str) -> Any:
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, torch.jit.ScriptModule | torch.ScriptObject):
            raise UnsupportedModel(
                "a part of the module is TorchScript, which cannot be traced",
                where=path or type(value).__name__,
                facts=f"it is a {type(value).__name__}; quantized modules hold such parts too",
                fix="compile the module as it was before it was scripted or quantized",
            )
        make = _maker(value)
        return value if make is None else make(self, value, path)

    def _remember(self, original: Any, copy: Any) -> Any:
        self._done[id(original)] = copy
        self._originals.append(original)
        return copy

    def _object(self, value: Any, path: str) -> Any:
        copy = self._remember(value, object.__new__(type(value)))
        is_module = isinstance(value, torch.nn.Module)
        for name, attribute in vars(value).items():
            inner = path if is_module and name in _OF_A_MODULE else _join(path, name)
            copy.__dict__[name] = self._copy(attribute, inner)
        return copy

    def _tensor(self, value: torch.Tensor, path: str) -> torch.Tensor:
        alias: Any = value.detach()
        if isinstance(value, torch.nn.Parameter):
            wants_grad = value.requires_grad and not value.is_inference()
            alias = torch.nn.Parameter(alias, requires_grad=wants_grad)
        alias.__dict__.update(vars(value))
        self.tensors[path] = alias
        return self._remember(value, alias)

    def _container(self, value: Any, path: str) -> Any:
        copy = self._remember(value, value.copy())  # keeps the class, and a default_factory
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            copy[key] = self._copy(item, _join(path, str(key)))
        return copy

    def _tuple(self, value: Any, path: str) -> Any:
        items = [self._copy(item, _join(path, str(i))) for i, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value)):
            return value
        return self._remember(
            value, value._make(items) if hasattr(value, "_make") else tuple(items)
        )

    def _set(self, value: Any, path: str) -> Any:
        return self._remember(value, type(value)(self._copy(item, path) for item in value))

    def _method(self, value: types.MethodType, path: str) -> Any:
        return types.MethodType(value.__func__, self._copy(value.__self__, path))

    def _partial(self, value: functools.partial, path: str) -> Any:
        function = self._copy(value.func, path)
        args = self._tuple(value.args, path)
        return functools.partial(function, *args, **self._container(value.keywords, path))


_CONTAINERS = {
    **dict.fromkeys((dict, OrderedDict, defaultdict, list, deque), StructuralCopy._container),
    tuple: StructuralCopy._tuple,
    **dict.fromkeys((set, frozenset), StructuralCopy._set),
    types.MethodType: StructuralCopy._method,
    functools.partial: StructuralCopy._partial,
    **dict.fromkeys((torch.Tensor, torch.nn.Parameter), StructuralCopy._tensor),
}


def _maker(value: Any) -> Any:
    """How to copy `value`; None for what is shared: numbers, functions, locks, and the like."""
    kind = type(value)
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return StructuralCopy._tuple
    if isinstance(value, torch.nn.Module) or _is_plain(value):
        return StructuralCopy._object
    return None


def _is_plain(value: Any) -> bool:
    """Whether an object is its `__dict__` and nothing else: its class made in Python, by default.

    So enums, tensors of other classes, classes themselves and what C code made are shared.
    """
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and kind.__new__ is object.__new__
        and kind.__basicsize__ == _Plain.__basicsize__  # no slots
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__  # type: ignore[attr-defined]
        and not hasattr(kind, "__deepcopy__")
        and not isinstance(value, enum.Enum | type | types.ModuleType)
    )


class _Plain:
    pass


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def require_weights(module: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """UnsupportedModel when some of a module's named tensors have no values."""
    without = [name for name, tensor in tensors if tensor.is_meta]
    if without:
        raise UnsupportedModel(
            "the module has no weights",
            where=type(module).__name__,
            facts=f"{len(without)} tensors are on the meta device: {listed(without, ', ')}",
            fix="load its weights first, onto the CPU or a GPU; of a checkpoint by"
            " from_pretrained(folder)",
        )


def structural_copy(module: torch.nn.Module) -> StructuralCopy:
    """Copy a module's structure. `UnsupportedModel` when lazy parts have no shape yet."""
    named = [*module.named_parameters(), *module.named_buffers()]
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise UnsupportedModel(
            "the module is not initialized",
            where=type(module).__name__,
            facts=f"{len(lazy)} lazy parameters have no shape yet: {listed(lazy, ', ')}",
            fix="call the module once in PyTorch first",
        )
    return StructuralCopy(module)
