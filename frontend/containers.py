"""From torch's containers, and from classes that it does not know, to the trees of a signature.

Torch's export takes containers that are registered with pytree; as results dataclasses, and
subclasses of dict, are containers here as well, and anything without tensors that cannot change is
a constant.
"""

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..ir.errors import UnsupportedModel
from ..ir.signature import Constant, Container, Output, Tree

_LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, type),
)


def tree_of(spec: pytree.TreeSpec, leaves: Iterator[Tree]) -> Tree:
    """Torch's description of containers as a tree with these leaves."""
    if spec.is_leaf():
        return next(leaves)
    parts = tuple(tree_of(child, leaves) for child in spec.children())
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return Container(kind.__name__, parts)
    if kind is dict:
        return Container("dict", parts, tuple(context))
    node = pytree.SUPPORTED_NODES[kind]
    cls = context if pytree.is_namedtuple_class(context) else kind

    def take(value: Any) -> Sequence[Any] | None:
        if type(value) is not cls:
            return None
        items, its = node.flatten_fn(value)
        return list(items) if its == context else None

    nature, keys = _nature(cls, context, len(parts))
    return Container(
        nature, parts, keys, cls.__name__, take, lambda items: node.unflatten_fn(items, context)
    )


def _nature(cls: Any, context: Any, count: int) -> tuple[str, tuple[Any, ...]]:
    """What kind of container a registered class is, and its keys where torch's context has them."""
    if pytree.is_namedtuple_class(cls):
        return "namedtuple", cls._fields
    if issubclass(cls, tuple):
        return "tuple", ()
    if issubclass(cls, Mapping) or dataclasses.is_dataclass(cls):
        found = [context, *(context if isinstance(context, list | tuple) else ())]
        keys = [c for c in found if isinstance(c, list | tuple) and len(c) == count]
        if keys:
            return "record" if dataclasses.is_dataclass(cls) else "mapping", tuple(keys[0])
    return "sequence", ()


class Results:
    """Stands behind a module that is traced: `tree` is there once it has returned.

    Its `Output(i)` is the i-th tensor that torch saw returned. It stays None where torch does not
    call the module but its code, as for graph modules: these return containers that torch knows.
    """

    tree: Tree | None = None

    def __init__(self, module: torch.nn.Module):
        self._leaves: list[Any] = []
        module.register_forward_hook(self._take)  # after the module's own hooks

    def _take(self, module: torch.nn.Module, args: Any, output: Any) -> list[Any]:
        self._leaves = []
        self.tree = self._part(output, "")
        return self._leaves

    def _part(self, value: Any, path: str) -> Tree:
        if isinstance(value, _LEAVES):
            self._leaves.append(value)
            return Output(len(self._leaves) - 1)
        if isinstance(value, _CONSTANTS):
            return Constant(value)
        if isinstance(value, torch.Size):
            return Container("tuple", self._parts(list(value), path), make=torch.Size)
        if isinstance(value, dict) and type(value) not in pytree.SUPPORTED_NODES:
            return self._keyed("mapping", value, dict(value), path, _refilled(value))
        # a dataclass may be registered all the same, as transformers' outputs are
        if dataclasses.is_dataclass(value) and type(value) not in pytree.SUPPORTED_NODES:
            fields = [field.name for field in dataclasses.fields(value)]
            items = {name: getattr(value, name) for name in fields if hasattr(value, name)}
            return self._keyed("record", value, items, path, _reborn(type(value), list(items)))
        children, spec = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
        if children == [value] and spec.is_leaf():
            raise UnsupportedModel(
                f"the module returns a {type(value).__name__}",
                where=f"its result{path}",
                facts="results are tensors, numbers, text and None, in lists, tuples, dicts and"
                " dataclasses",
                fix="return the tensors, and make the object from them outside of the module",
            )
        return tree_of(spec, iter(self._parts(children, path)))

    def _parts(self, values: Sequence[Any], path: str) -> tuple[Tree, ...]:
        return tuple(self._part(value, f"{path}[{i}]") for i, value in enumerate(values))

    def _keyed(
        self, kind: str, value: Any, items: dict[Any, Any], path: str, make: Callable
    ) -> Container:
        form = "{}.{}" if kind == "record" else "{}[{!r}]"
        parts = tuple(self._part(item, form.format(path, key)) for key, item in items.items())
        return Container(kind, parts, tuple(items), type(value).__name__, make=make)


def _refilled(value: dict) -> Callable[[list[Any]], Any]:
    """Makes dicts like `value`, of its class and with what else it has, from other values."""
    empty = copy.copy(value)
    for key in empty:
        dict.__setitem__(empty, key, None)

    def make(parts: list[Any]) -> Any:
        new = copy.copy(empty)
        for key, part in zip(empty, parts):
            dict.__setitem__(new, key, part)
        return new

    return make


def _reborn(kind: type, names: list[str]) -> Callable[[list[Any]], Any]:
    """Makes a dataclass from its fields; its __post_init__ has run: they are what it left."""

    def make(parts: list[Any]) -> Any:
        new = object.__new__(kind)
        for name, part in zip(names, parts):
            object.__setattr__(new, name, part)
        return new

    return make
