"""Signature: how a call's arguments and results, with their containers, map to a program's.

Plain data that knows neither torch nor the classes of a model, so a stored program keeps it. Where
the model's own classes are at hand, `Container.take` and `make` lead from and to them; without them
a named tuple is one of the same fields, and any other class a `Record`.
"""

import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from .errors import ShapeError, listed, shown

# "mapping", "sequence" and "record" stand for any class of that nature, which `name` tells;
# "complex" for an array of complex numbers, whose parts are two arrays
KINDS = ("tuple", "list", "dict", "namedtuple", "mapping", "sequence", "record", "complex")
COMPLEX_PARTS = ("real", "imag")  # the parts, by what both NumPy and torch call them
_EXACT = {"tuple": tuple, "list": list, "dict": dict}


@dataclass(frozen=True)
class Input:
    """An argument that is an array: the program's input of this name."""

    name: str


@dataclass(frozen=True)
class Output:
    """A result that is the program's output `index`; its only element where it is a number."""

    index: int
    is_number: bool = False


@dataclass(frozen=True)
class Constant:
    """A value that the program was compiled with, or that it always returns."""

    value: Any


@dataclass(frozen=True)
class Container:
    """Parts in a container; `keys` are those of a dict, or the names of fields."""

    kind: str
    parts: tuple["Tree", ...]
    keys: tuple[Any, ...] = ()
    name: str = ""  # of its class, for messages and for a named tuple
    # the parts of a value, None if it is built otherwise; and the inverse
    take: Callable[[Any], Sequence[Any] | None] | None = field(
        default=None, compare=False, repr=False
    )
    make: Callable[[list[Any]], Any] | None = field(default=None, compare=False, repr=False)


Tree: TypeAlias = Input | Output | Constant | Container


class Record(dict):
    """A dict whose items are attributes as well: what a class of the model's was."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are {', '.join(self)}") from None


@dataclass(frozen=True)
class Signature:
    """What one program takes and gives: a tree for each argument, and one for the result."""

    positional: tuple[Tree, ...]
    keywords: Mapping[str, Tree]
    results: Tree
    written: tuple[tuple[str, int], ...] = ()  # (input, output): what the module writes into it

    def flatten(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Arguments as a mapping from input names; keywords may come in any order.

        `ShapeError` lists all that is built otherwise, or every constant that has changed; `names`
        are those of the parameters, as far as they are known.
        """
        flat = self._flat
        if flat is not None and not kwargs and len(args) == len(flat) and all(map(is_array, args)):
            return dict(zip(flat, args))
        inputs: dict[str, Any] = {}
        problems: list[str] = []
        changed: list[str] = []
        if len(args) != len(self.positional):
            problems.append(f"{len(args)} arguments by position, it was {len(self.positional)}")
        if kwargs.keys() != self.keywords.keys():
            problems.append(
                f"the keywords {', '.join(kwargs) or '(none)'},"
                f" it was {', '.join(self.keywords) or '(none)'}"
            )
        if not problems:
            values = [*args, *(kwargs[name] for name in self.keywords)]
            for (where, tree), value in zip(self.named(names).items(), values):
                _take(tree, value, where, inputs, problems, changed)
        if problems:
            raise ShapeError(
                "the arguments are not built like those it was compiled for",
                facts=listed(problems),
                fix="pass the same containers and keywords, or compile again",
            )
        if changed:
            raise ShapeError(
                "an argument that was compiled in as a constant has changed",
                facts=listed(changed),
                fix="compile again for the new value, or pass it as a tensor",
            )
        return inputs

    @cached_property
    def _flat(self) -> tuple[str, ...] | None:
        """The inputs where each argument is an array given by position, the usual case."""
        names = tuple(tree.name for tree in self.positional if isinstance(tree, Input))
        return names if len(names) == len(self.positional) and not self.keywords else None

    def restore(self, outputs: Sequence[Any]) -> Any:
        """The program's outputs in the module's containers; numbers as Python ints."""
        return _make(self.results, outputs)

    def named(self, names: Sequence[str] = ()) -> dict[str, Tree]:
        """The trees of the arguments by the names of their parameters, as far as they are known."""
        positional = {
            names[index] if index < len(names) else f"args[{index}]": tree
            for index, tree in enumerate(self.positional)
        }
        return positional | dict(self.keywords)


def is_array(value: Any) -> bool:
    """Whether a program takes this for an array."""
    return isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")


def text_of(tree: Tree, types: Mapping[Any, Any] | None = None) -> str:
    """How a tree is built, for people; `types` are those of inputs by name, of outputs by index."""
    if isinstance(tree, Constant):
        return shown(tree.value)
    if isinstance(tree, Output) and tree.is_number:
        return "number"
    if not isinstance(tree, Container):
        key = tree.name if isinstance(tree, Input) else tree.index
        return "array" if types is None else str(types[key])
    parts = [text_of(part, types) for part in tree.parts]
    if tree.keys:
        parts = [f"{key}: {part}" for key, part in zip(tree.keys, parts)]
    return f"{tree.name or tree.kind}({', '.join(parts)})"


def with_leaves(tree: Tree, leaves: Sequence[Tree]) -> Tree:
    """The tree with `leaves[i]` in place of each `Output(i)`."""
    if isinstance(tree, Output):
        return leaves[tree.index]
    if isinstance(tree, Container):
        return replace(tree, parts=tuple(with_leaves(part, leaves) for part in tree.parts))
    return tree


def path_to(where: str, tree: Container, index: int) -> str:
    """What a message calls part `index` of the container that it calls `where`."""
    key = tree.keys[index] if tree.keys else index
    return f"{where}.{key}" if tree.kind in ("namedtuple", "record") else f"{where}[{key!r}]"


# ---- arguments -----------------------------------------------------------------------------


def _take(
    tree: Tree,
    value: Any,
    where: str,
    inputs: dict[str, Any],
    problems: list[str],
    changed: list[str],
) -> None:
    if isinstance(tree, Input):
        if is_array(value):
            inputs[tree.name] = value
        else:
            problems.append(f"{where} is {shown(value)}, it was an array")
    elif isinstance(tree, Container):
        parts = tree.take(value) if tree.take is not None else _parts(tree, value)
        if parts is None:
            problems.append(f"{where} is {_built(value)}, it was {text_of(tree)}")
            return
        for index, (part, item) in enumerate(zip(tree.parts, parts, strict=True)):
            _take(part, item, path_to(where, tree, index), inputs, problems, changed)
    elif isinstance(tree, Constant) and not _is_same(value, tree.value):
        if isinstance(value, tuple | list | dict):
            problems.append(f"{where} is {_built(value)}, it was {shown(tree.value)}")
        else:
            now = "an array" if is_array(value) else shown(value)
            changed.append(f"{where}: it was {shown(tree.value)}, now it is {now}")


def _is_same(now: Any, then: Any) -> bool:
    if isinstance(now, np.ndarray) and isinstance(then, np.ndarray):
        is_alike = now.shape == then.shape and now.dtype == then.dtype
        return is_alike and now.tobytes() == then.tobytes()
    if type(now) is not type(then) or is_array(now):
        return False
    return repr(now) == repr(then) if isinstance(now, float) else now == then  # NaN, and -0.0


def _parts(tree: Container, value: Any) -> Sequence[Any] | None:
    """The parts of a value that is built like `tree`, as far as the container's kind tells."""
    match tree.kind:
        case "tuple" | "list" | "dict" if type(value) is not _EXACT[tree.kind]:
            return None
        case "namedtuple":
            is_alike = isinstance(value, tuple) and getattr(value, "_fields", ()) == tree.keys
            return value if is_alike else None
        case "record":
            if isinstance(value, Mapping):
                is_alike = value.keys() == set(tree.keys)
                return [value[key] for key in tree.keys] if is_alike else None
            is_alike = all(hasattr(value, key) for key in tree.keys)
            return [getattr(value, key) for key in tree.keys] if is_alike else None
        case "dict" | "mapping":
            # in the same order: a module may go through them one after the other
            is_alike = isinstance(value, Mapping) and tuple(value) == tree.keys
            return list(value.values()) if is_alike else None
        case "complex":
            is_alike = is_array(value) and "complex" in str(value.dtype)
            return [getattr(value, part) for part in COMPLEX_PARTS] if is_alike else None
    is_alike = isinstance(value, tuple | list) and len(value) == len(tree.parts)
    return value if is_alike else None


def _built(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, Mapping):
        return f"a {name} of {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, tuple | list):
        return f"a {name} of {len(value)}"
    return "an array" if is_array(value) else shown(value)


# ---- results -------------------------------------------------------------------------------


def _make(tree: Tree, outputs: Sequence[Any]) -> Any:
    if isinstance(tree, Output):
        value = outputs[tree.index]
        return value.item() if tree.is_number else value
    if isinstance(tree, Constant):
        return tree.value
    assert isinstance(tree, Container), f"{tree} is no part of a result"
    parts = [_make(part, outputs) for part in tree.parts]
    if tree.make is not None:
        return tree.make(parts)
    match tree.kind:
        case "tuple":
            return tuple(parts)
        case "namedtuple":
            return _named_tuple(tree.name, tree.keys)(*parts)
        case "record":
            return Record(zip(tree.keys, parts))
        case "dict" | "mapping":
            return dict(zip(tree.keys, parts))
        case "complex":
            return _joined(*parts)
    return parts


def _joined(real: Any, imag: Any) -> Any:
    """Complex numbers from their parts: a tensor of torch's from tensors, else a NumPy array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(real, torch.Tensor):
        return torch.complex(real, imag)
    real, imag = (x if isinstance(x, np.ndarray) else x.numpy() for x in (real, imag))
    whole = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    whole.real, whole.imag = real, imag
    return whole


@lru_cache(maxsize=64)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)  # which takes identifiers only
