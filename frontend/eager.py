"""Operations that no table has, left to torch: called on the host while the program runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..ir.dim import Expr
from ..ir.graph import Value
from ..ir.host_functions import register_function
from ..ir.types import TensorType
from .dtypes import from_numpy, from_torch, to_numpy
from .importer import Call, Declined, target_name


class _Operand:
    """Stands for a tensor among an operation's arguments."""

    def __repr__(self) -> str:
        return "_"


_OPERAND = _Operand()


def eager_call(call: Call, *args: Any, **kwargs: Any) -> Value | tuple[Value, ...]:
    """The operation as a `call` of torch's own, which is registered here, in this process.

    Declined where it is no function of its tensors, or is given a size.
    """
    target = call.node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise Declined("it is no operation of torch's that could be called")
    if target._schema.is_mutable:
        raise Declined("it writes into an argument")
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Declined("it draws random numbers")
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if any(isinstance(leaf, Expr) for leaf in leaves):
        raise Declined("a size is among its arguments")
    operands = [leaf for leaf in leaves if isinstance(leaf, Value)]
    if not operands:
        raise Declined("it has no tensor among its arguments")
    expected = call.expected
    outputs = tuple(expected) if isinstance(expected, (list, tuple)) else (expected,)
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise Declined("its results are not tensors alone")
    constants = [_OPERAND if isinstance(leaf, Value) else leaf for leaf in leaves]
    binds = call.importer.late_symbols(call.node)
    shapes = [call.importer.table.shape(output.shape) for output in outputs]
    results = [TensorType(s, from_torch(o.dtype)) for s, o in zip(shapes, outputs)]
    # the name says all that it computes, so that equal names are one function
    given, named = pytree.tree_unflatten(constants, spec)
    shown = [*map(repr, given), *(f"{key}={value!r}" for key, value in named.items())]
    name = f"{target_name(target)}({', '.join(shown)})"
    register_function(name, _function(target, constants, spec))
    return call.b.call(*operands, function=name, results=tuple(results), binds=binds)


def _function(target: Any, constants: Sequence[Any], spec: Any) -> Any:
    def compute(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        tensors = map(from_numpy, arrays)
        leaves = [next(tensors) if c is _OPERAND else c for c in constants]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch.no_grad():
            found = target(*args, **kwargs)
        return tuple(map(to_numpy, found if isinstance(found, (list, tuple)) else (found,)))

    return compute
