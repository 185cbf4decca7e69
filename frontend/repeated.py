"""Layers that are alike are traced once: those after the first are what it is, with own weights.

Members of a list are alike where they are called alike and built alike: of one class, with tensors
of the same types, and equal in every other attribute that the trace of the first one read. A trace
holds one node for each after the first, and spell_out.py puts there what it holds of the first.
A layer that changes an object of its own is no such first one; variables of modules of Python are
not looked at, of which torch.export takes the values that it finds.
"""

import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

MEMBERS = 3  # of one class in a list: fewer are traced one by one
PARTS = 4  # modules in each
_TORCH = os.path.dirname(torch.__file__) + os.sep
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_NO_STATE = (torch.nn.Module, torch.Tensor, type, types.FunctionType, types.ModuleType)

_library = torch.library.Library("tilewright", "FRAGMENT")
_library.define("layer_edge(Tensor[] values, int first, bool is_end, str path) -> Tensor[]")
_library.define("layer_again(Tensor[] values, int first, str path) -> Tensor[]")


class _Meta(NamedTuple):
    """What a trace knows of a tensor."""

    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: torch.Tensor) -> "_Meta":
        return cls(tuple(x.shape), x.stride(), x.dtype, x.device)

    def empty(self) -> torch.Tensor:
        """Another tensor of which the same is known."""
        return torch.empty_strided(*self[:2], dtype=self.dtype, device=self.device)

    @property
    def key(self) -> tuple[Any, ...]:
        """To compare by: to compare symbolic sizes themselves would leave guards."""
        return *map(_called, (*self.shape, *self.stride)), self.dtype, self.device


_numbers = count()  # of first layers: no two traces share one
_results: dict[int, list[_Meta]] = {}  # of first layers, while they are traced


@torch.library.register_fake("tilewright::layer_edge")
def _fake_edge(
    values: Sequence[torch.Tensor], first: int, is_end: bool, path: str
) -> list[torch.Tensor]:
    """The values, as they enter or leave the first layer of a kind, which is at `path`."""
    return [_Meta.of(x).empty() for x in values]


@torch.library.register_fake("tilewright::layer_again")
def _fake_again(values: Sequence[torch.Tensor], first: int, path: str) -> list[torch.Tensor]:
    """The results of the layer at `path`, which is alike a first one."""
    return [meta.empty() for meta in _results[first]]


class _Called(NamedTuple):
    """How a layer was called."""

    leaves: list[Any]
    spec: pytree.TreeSpec
    modes: list[bool]

    @property
    def key(self) -> tuple[Any, ...]:
        """To compare by, now: sizes may have been found equal since."""
        return self.spec, self.modes, [_called(x) for x in self.leaves]


@dataclass(frozen=True)
class _First:
    """A layer that was traced: how it was called, what it gave, which attributes it read."""

    number: int
    layer: torch.nn.Module
    path: str
    called: "_Called"
    leaves: list[Any]  # of the result
    spec: pytree.TreeSpec
    read: set[tuple[int, str]]


@contextmanager
def traced_once(root: torch.nn.Module) -> Iterator[None]:
    """Layers in `root` that are alike are traced once, by the tracer that torch.export has."""
    repeats = _Repeats(root)
    tracer: Any = proxy_tensor._ModuleStackTracer
    call_module = tracer.call_module

    def call(self: Any, m: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # by their dicts, which the tracer's stand-ins for modules have too
        member = repeats.members.get(id(object.__getattribute__(m, "__dict__")))
        if member is not None:
            forward = partial(repeats.call, *member, forward)
        return call_module(self, m, forward, args, kwargs)

    tracer.call_module = call
    try:
        yield
    finally:
        tracer.call_module = call_module
        for first in repeats.firsts:
            del _results[first.number]


class _Repeats:
    """What of a module's lists was traced; `members`: id of a layer's dict -> layer and path."""

    def __init__(self, root: torch.nn.Module):
        self.firsts: list[_First] = []
        self._is_inside = False
        tensors = [*root.named_parameters(remove_duplicate=False)]
        tensors += root.named_buffers(remove_duplicate=False)
        self._tensors = {name: id(tensor) for name, tensor in tensors}
        self._places = Counter(self._tensors.values())
        self.members = {id(vars(layer)): (layer, path) for path, layer in _members(root)}

    def call(
        self,
        layer: torch.nn.Module,
        path: str,
        forward: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """What `forward`, which runs the layer, gives; or a node that says it is another again."""
        # what can be changed by the layer is no argument of a function
        leaves, spec = pytree.tree_flatten(
            (args, kwargs), lambda x: isinstance(x, list | dict) and x is not kwargs
        )
        values = [x for x in leaves if isinstance(x, torch.Tensor)]
        if self._is_inside or not values or not all(map(_is_fixed, leaves)):
            return forward(*args, **kwargs)
        modes = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
        called = _Called(leaves, spec, [*modes, torch.is_grad_enabled()])
        for first in self.firsts:
            if first.called.key == called.key and self._is_alike(first, layer, path):
                again = torch.ops.tilewright.layer_again(values, first.number, path)
                return pytree.tree_unflatten(_filled(first.leaves, again), first.spec)
        number, before = next(_numbers), _state(layer)
        entered = torch.ops.tilewright.layer_edge(values, number, False, path)
        args, kwargs = pytree.tree_unflatten(_filled(leaves, entered), spec)
        with self._reading() as read:
            leaves, spec = pytree.tree_flatten(forward(*args, **kwargs))
        values = [x for x in leaves if isinstance(x, torch.Tensor)]
        if values and all(map(_is_fixed, leaves)) and _is_same_state(before, _state(layer)):
            _results[number] = [_Meta.of(x) for x in values]
            self.firsts.append(_First(number, layer, path, called, leaves, spec, read))
            left = torch.ops.tilewright.layer_edge(values, number, True, path)
            leaves = _filled(leaves, left)
        return pytree.tree_unflatten(leaves, spec)

    @contextmanager
    def _reading(self) -> Iterator[set[tuple[int, str]]]:
        """Which attributes of modules are read: (id of the module's dict, name)."""
        read: set[tuple[int, str]] = set()
        get, here = object.__getattribute__, threading.get_ident()

        def reading(module: Any, name: str) -> Any:
            if threading.get_ident() == here:
                held = get(module, "__dict__")
                # torch itself looks there for tensors and parts; others may for anything
                file = sys._getframe(1).f_code.co_filename if name == "__dict__" else _TORCH
                names = [name] if file.startswith(_TORCH) else list(held)
                read.update((id(held), each) for each in names)
            return get(module, name)

        kind: Any = torch.nn.Module
        self._is_inside, kind.__getattribute__ = True, reading
        try:
            yield read
        finally:
            self._is_inside = False
            del kind.__getattribute__

    def _is_alike(self, first: _First, layer: torch.nn.Module, path: str) -> bool:
        """Whether a layer's forward would do what the first one's did, with its own tensors."""
        pairs = _pairs(first.layer, layer, first.path, path)
        if pairs is None:
            return False
        other = {id(one): two for one, two, *_ in pairs}
        for one, two, *paths in pairs:
            mine, theirs = vars(one), vars(two)
            for kind in ("_parameters", "_buffers"):
                if mine[kind].keys() != theirs[kind].keys():
                    return False
                for name, x in mine[kind].items():
                    if not _is_same_type(x, theirs[kind][name]) or not self._is_own(name, *paths):
                        return False
            for name in (mine.keys() | theirs.keys()) - {"_parameters", "_buffers", "_modules"}:
                if (id(mine), name) in first.read:
                    is_there = name in mine and name in theirs
                    if not is_there or not _is_same(name, mine[name], theirs[name], other):
                        return False
        return True

    def _is_own(self, name: str, mine: str, theirs: str) -> bool:
        """Whether tensors at both paths are one, or are in no other place of the module."""
        both = [self._tensors.get(f"{path}.{name}") for path in (mine, theirs)]
        return both[0] == both[1] or all(self._places[x] == 1 for x in both)


def _members(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The members of lists, with their paths, that are to be looked at; of lists in them, none."""
    found: list[str] = []
    for name, each in root.named_modules():
        if not isinstance(each, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        if any(name.startswith(f"{path}.") for path in found):
            continue
        kinds = Counter(map(type, each))
        for key, layer in each.named_children():
            is_big = sum(1 for _ in layer.modules()) >= PARTS
            if kinds[type(layer)] >= MEMBERS and is_big:
                found.append(f"{name}.{key}" if name else key)
                yield found[-1], layer


def _pairs(
    one: torch.nn.Module, two: torch.nn.Module, *paths: str
) -> list[tuple[torch.nn.Module, torch.nn.Module, str, str]] | None:
    """The parts of two modules side by side, with their paths; None where they differ."""
    if type(one) is not type(two) or one._modules.keys() != two._modules.keys():
        return None
    found = [(one, two, *paths)]
    for name, part in one._modules.items():
        other = two._modules[name]
        if part is None or other is None:
            if part is not other:
                return None
            continue
        inner = _pairs(part, other, *(f"{path}.{name}" for path in paths))
        if inner is None:
            return None
        found += inner
    return found


def _is_same_type(x: torch.Tensor | None, y: torch.Tensor | None) -> bool:
    if x is None or y is None:
        return x is y
    return type(x) is type(y) and _Meta.of(x).key == _Meta.of(y).key


def _is_same(name: str, x: Any, y: Any, other: dict[int, Any]) -> bool:
    """Whether attributes are equal; `other` has the module that is in the place of one."""
    if x is y or other.get(id(x)) is y is not None:
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, types.MethodType):
        return x.__func__ is y.__func__ and _is_same(name, x.__self__, y.__self__, other)
    if isinstance(x, partial):
        x, y = (x.func, x.args, x.keywords), (y.func, y.args, y.keywords)
    if isinstance(x, dict):
        # hooks are under numbers of their own
        is_keyed = "_hooks" in name or x.keys() == y.keys()
        x, y = list(x.values()), list(y.values())
        return is_keyed and _is_same(name, x, y, other)
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(_is_same(name, a, b, other) for a, b in zip(x, y))
    parts = x if isinstance(x, set | frozenset) else [x]
    return all(isinstance(part, _PLAIN) for part in parts) and x == y


def _is_fixed(x: Any) -> bool:
    """Whether nobody can change an argument or a result: a tensor's trace, numbers, and records."""
    if isinstance(x, torch.Tensor):
        return x.layout is torch.strided
    return isinstance(x, (*_PLAIN, torch.SymInt)) or _is_frozen(x)


def _is_frozen(x: Any) -> bool:
    parameters = getattr(type(x), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _called(x: Any) -> Any:
    """An argument or a size, to compare by."""
    if isinstance(x, torch.Tensor):
        return _Meta.of(x).key
    if isinstance(x, torch.SymInt):
        return "a size", x.node.expr
    return type(x), x


def _filled(leaves: Sequence[Any], values: Sequence[torch.Tensor]) -> list[Any]:
    """The leaves with other tensors in place of theirs."""
    following = iter(values)
    return [next(following) if isinstance(x, torch.Tensor) else x for x in leaves]


def _state(layer: torch.nn.Module) -> list[list[Any]]:
    """What a layer's modules hold, and the objects and containers that these hold."""
    found = []
    for part in layer.modules():
        held = [x for x in vars(part).values() if not isinstance(x, _NO_STATE)]
        found += [_contents(x) for x in (part, *held)]
    return found


def _contents(x: Any) -> list[Any]:
    if isinstance(x, list | tuple | set):
        return list(x)
    inside = x if isinstance(x, dict) else getattr(x, "__dict__", {})
    return [*inside.keys(), *inside.values()]


def _is_same_state(before: list[list[Any]], after: list[list[Any]]) -> bool:
    return list(map(len, before)) == list(map(len, after)) and all(
        x is y for one, two in zip(before, after) for x, y in zip(one, two)
    )
