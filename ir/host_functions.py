"""Functions that this process has registered, for graphs and programs to call by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import DeviceError, listed

Function = Callable[..., Any]  # arrays -> an array, or a tuple of them

_REGISTERED: dict[str, Function] = {}


def register_function(name: str, function: Function) -> None:
    """Let programs call `function` as `name`: one registered before under that name is replaced.

    It gets NumPy arrays of its own, and returns an array or a tuple of arrays. It must be the same
    function of its arguments at each call; what it returns is checked for dtype and shape.
    """
    _REGISTERED[name] = function


def find_functions(caller: str, names: Iterable[str]) -> dict[str, Function]:
    """The registered functions of these names; DeviceError naming all that are missing."""
    return find_named(
        _REGISTERED,
        names,
        f"{caller} calls {{}} functions that this process has not registered",
        "call tilewright.ir.host_functions.register_function(name, function) first",
    )


def find_named(table: Mapping[str, Any], names: Iterable[str], what: str, fix: str) -> dict:
    """A table's entries of these names; DeviceError `what`, about so many, names all it lacks."""
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if name not in table]
    if missing:
        raise DeviceError(what.format(len(missing)), facts=listed(missing), fix=fix)
    return {name: table[name] for name in names}
