"""Operations taken apart by torch into others: all of a program's, or one where it stands."""

from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .in_place import sees_writes
from .tracing import tracing

# what torch leaves whole by default, and takes apart into operations of our table when asked
_TAKEN_APART = (torch.ops.aten.tril_indices.default, torch.ops.aten.triu_indices.default)


@cache
def decompositions() -> dict[Any, Any]:
    """Torch's decompositions of all operations that have one."""
    return dict(torch.export.default_decompositions().items()) | _more_decompositions()


def _more_decompositions() -> dict[Any, Any]:
    """Those of torch's that export leaves out: into ATen operations, and without random numbers."""
    found = torch._decomp.get_decompositions(_TAKEN_APART)
    for overload, function in torch._decomp.decomposition_table.items():
        is_plain = isinstance(overload, torch._ops.OpOverload) and not overload._schema.is_mutable
        # those of torch._refs end in torch's own primitives instead
        if is_plain and function.__module__ == torch._decomp.decompositions.__name__:
            if torch.Tag.nondeterministic_seeded not in overload.tags:
                found[overload] = function
    return found


class Entangled(Exception):
    """An operation cannot be taken apart where it stands: only with its whole program."""


def taken_apart(node: fx.Node, target: Any) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """The operation as torch writes it with others, traced for the operands that the node has.

    -> a graph that is placed in messages as the node is, and the nodes whose values it is given;
    None where torch has it as one. Raises `Entangled`.
    """
    apart = decompositions().get(target)
    if apart is None and isinstance(target, torch._ops.OpOverload) and target._can_decompose():
        apart = target.decompose  # torch lists no views
    if apart is None:
        return None
    if "unbacked_bindings" in node.meta:  # before torch makes such sizes anew
        raise Entangled
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    given = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, fx.Node)))

    def compute(*values: Any) -> Any:
        stands = dict(zip(given, values))
        args, kwargs = pytree.tree_unflatten(
            [stands[x] if isinstance(x, fx.Node) else x for x in leaves], spec
        )
        with torch._C.DisableTorchFunction():  # a mode would see the operation again, whole
            result = apart(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result  # without its names

    try:
        with tracing():
            values = [operand.meta["val"] for operand in given]
            # before autograd: operations that torch takes apart by itself stay whole
            module = make_fx(compute, pre_dispatch=True)(*values)
    except Exception as error:
        raise Entangled from error
    if sees_writes(module.graph) or _checks(module.graph):
        raise Entangled
    for inner in module.graph.nodes:
        for key in ("nn_module_stack", "stack_trace"):
            if key in node.meta:
                inner.meta[key] = node.meta[key]
    return module, given


def _checks(graph: fx.Graph) -> bool:
    """Whether an operation without results is in it, which checks values."""
    targets = (node.target for node in graph.nodes)
    return any(isinstance(t, torch._ops.OpOverload) and not t._schema.returns for t in targets)
