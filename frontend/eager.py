"""Operations that no table has, left to torch: called on the host while the program runs."""

import enum
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..ir.dim import Expr
from ..ir.graph import Value
from ..ir.host_functions import register_function
from ..ir.types import TensorType, i64
from .declined import Declined
from .dtypes import from_numpy, from_torch, to_numpy
from .fx_nodes import target_name
from .importer import Call
from .pairs import REAL_OF, Pair


class _Operand(enum.Enum):
    """Stands among an operation's arguments for what it is given while the program runs."""

    TENSOR = "_"
    COMPLEX = "_i"  # a tensor, given as its two parts
    NUMBER = "#"  # a size, or a number that was read from a tensor

    def __repr__(self) -> str:
        return self.value


def eager_call(call: Call, *args: Any, **kwargs: Any) -> Any:
    """The operation as a `call` of torch's own, which is registered here, in this process.

    -> its results, with None where it has none. Declined where it is no function of its arguments.
    """
    target, origins = call.target, call.node.args
    has_effects = target is torch.ops.higher_order.with_effects
    if has_effects:  # its results are a token, which keeps the call alive, and the operation's
        _, target, *args = args
        origins = origins[2:]
    if not isinstance(target, torch._ops.OpOverload):
        raise Declined("it is no operation of torch's that could be called")
    if target._schema.is_mutable:
        raise Declined("it writes into an argument")
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Declined("it draws random numbers")
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    nodes = pytree.tree_leaves((tuple(origins), call.node.kwargs))
    constants: list[Any] = []
    operands: list[Value] = []
    for leaf, node in zip(leaves, nodes, strict=True):
        if isinstance(leaf, Pair):
            constants.append(_Operand.COMPLEX)
            operands += [leaf.real, leaf.imag]
        elif isinstance(leaf, Value | Expr):
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            constants.append(_Operand.TENSOR if is_tensor else _Operand.NUMBER)
            operands.append(call.value(leaf, None if isinstance(leaf, Value) else i64))
        else:
            constants.append(leaf)
    returned, form = pytree.tree_flatten(call.expected)
    outputs = [output for output in returned if isinstance(output, torch.Tensor)]
    if not outputs or not all(isinstance(x, torch.Tensor | None) for x in returned):
        raise Declined("its results are not tensors alone")
    if not all(output.layout is torch.strided for output in outputs):
        raise Declined("its results are sparse")
    if not operands:
        raise Declined("it is given nothing that a run knows")
    binds = call.importer.late_symbols(call.node)
    results = [
        TensorType(call.importer.table.shape(x.shape), from_torch(REAL_OF.get(x.dtype, x.dtype)))
        for x in outputs
        for _ in range(2 if x.is_complex() else 1)
    ]
    # the name says all that it computes, so that equal names are one function
    given, named = pytree.tree_unflatten(constants, spec)
    shown = [*map(repr, given), *(f"{key}={value!r}" for key, value in named.items())]
    name = f"{target_name(target)}({', '.join(shown)})"
    register_function(name, _function(target, constants, spec, has_effects))
    found = call.b.call(*operands, function=name, results=tuple(results), binds=binds)
    values = iter(found if isinstance(found, tuple) else (found,))
    made = [
        None if x is None else Pair(next(values), next(values)) if x.is_complex() else next(values)
        for x in returned
    ]
    return pytree.tree_unflatten(made, form)


def _function(target: Any, constants: Sequence[Any], spec: Any, has_effects: bool) -> Any:
    def compute(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        given = iter(arrays)
        leaves = [_argument(c, given) if isinstance(c, _Operand) else c for c in constants]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch.no_grad():
            found = pytree.tree_leaves(target(*args, **kwargs))
        tensors = [torch.empty(0)] * has_effects + [x for x in found if x is not None]
        parts = [p for x in tensors for p in ((x.real, x.imag) if x.is_complex() else (x,))]
        return tuple(map(to_numpy, parts))

    return compute


def _argument(kind: _Operand, arrays: Iterator[np.ndarray]) -> Any:
    if kind is _Operand.NUMBER:
        return next(arrays).item()
    tensor = from_numpy(next(arrays))
    return tensor if kind is _Operand.TENSOR else torch.complex(tensor, from_numpy(next(arrays)))
