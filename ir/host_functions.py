"""Functions that this process has registered, for graphs and programs to call by name."""

from collections.abc import Callable, Iterable
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
    names = tuple(dict.fromkeys(names))
    missing = [name for name in names if name not in _REGISTERED]
    if missing:
        raise DeviceError(
            f"{caller} calls {len(missing)} functions that this process has not registered",
            facts=listed(missing),
            fix="call tilewright.ir.host_functions.register_function(name, function) first",
        )
    return {name: _REGISTERED[name] for name in names}
