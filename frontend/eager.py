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


def eager_call(call: Call, *args: Any, **kwargs: Any) -> Any:
    """The operation as a `call` of torch's own, which is registered here, in this process.

    -> its results, with None where it has none. Declined where it is no function of its tensors,
    or is given a size.
    """
    target = call.node.target
    has_effects = target is torch.ops.higher_order.with_effects
    if has_effects:  # its results are a token, which keeps the call alive, and the operation's
        _, target, *args = args
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
    returned, form = pytree.tree_flatten(call.expected)
    outputs = [output for output in returned if isinstance(output, torch.Tensor)]
    if not outputs or not all(isinstance(x, torch.Tensor | None) for x in returned):
        raise Declined("its results are not tensors alone")
    constants = [_OPERAND if isinstance(leaf, Value) else leaf for leaf in leaves]
    binds = call.importer.late_symbols(call.node)
    shapes = [call.importer.table.shape(output.shape) for output in outputs]
    results = [TensorType(s, from_torch(o.dtype)) for s, o in zip(shapes, outputs)]
    # the name says all that it computes, so that equal names are one function
    given, named = pytree.tree_unflatten(constants, spec)
    shown = [*map(repr, given), *(f"{key}={value!r}" for key, value in named.items())]
    name = f"{target_name(target)}({', '.join(shown)})"
    register_function(name, _function(target, constants, spec, has_effects))
    found = call.b.call(*operands, function=name, results=tuple(results), binds=binds)
    values = iter(found if isinstance(found, tuple) else (found,))
    return pytree.tree_unflatten([None if x is None else next(values) for x in returned], form)


def _function(target: Any, constants: Sequence[Any], spec: Any, has_effects: bool) -> Any:
    def compute(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        tensors = map(from_numpy, arrays)
        leaves = [next(tensors) if c is _OPERAND else c for c in constants]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch.no_grad():
            found = pytree.tree_leaves(target(*args, **kwargs))
        tensors = [torch.empty(0)] * has_effects + [x for x in found if x is not None]
        return tuple(map(to_numpy, tensors))

    return compute
