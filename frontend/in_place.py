"""Operations that write in place where nobody sees it: they are the plain ones of the same name.

Which values of a trace lie in the same memory is known: the tensors of a trace have storages.
"""

from collections.abc import Iterator

import torch
from torch import fx
from torch.utils import _pytree as pytree

Overload = torch._ops.OpOverload


def plain_writes(graph: fx.Graph) -> dict[fx.Node, Overload]:
    """The nodes that write into memory which, from then on, only they are asked for.

    -> for each the operation that makes a new value of what the node writes. Memory of arguments,
    weights and constants is seen by others; any other is, if a node before the write that lies in
    it, whole or in part, is used after it.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    inside: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        for storage in storages(node):
            inside.setdefault(storage, []).append(node)
    found = {}
    for node in graph.nodes:
        if _writes(node):
            plain = _plain(node)
            if plain is not None and not any(
                other.op != "call_function" or _is_seen(other, order[node], order)
                for other in inside[next(storages(node))]
            ):
                found[node] = plain
    return found


def sees_writes(graph: fx.Graph) -> bool:
    """Whether a node writes in place that is no plain operation."""
    plain = plain_writes(graph)
    return any(_writes(node) and node not in plain for node in graph.nodes)


def storages(node: fx.Node) -> Iterator[int]:
    """Which memory the tensors of a node lie in. What torch traced of the node keeps it alive."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()._cdata


def written_storages(graph: fx.Graph) -> set[int]:
    """Which memory the nodes write into."""
    return {
        storage
        for node in filter(_writes, graph.nodes)
        for argument, x in zip(node.target._schema.arguments, node.args)
        if argument.alias_info is not None and argument.alias_info.is_write
        for written in pytree.tree_leaves(x)
        if isinstance(written, fx.Node)
        for storage in storages(written)
    }


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, Overload) and node.target._schema.is_mutable


def _is_seen(other: fx.Node, write: int, order: dict[fx.Node, int]) -> bool:
    return order[other] < write and any(order[user] > write for user in other.users)


def _plain(node: fx.Node) -> Overload | None:
    """`op` where the node is `op_`, and computes in the dtype of what it writes into."""
    target = node.target
    name, written = target._schema.name, node.args[0] if node.args else None
    value = node.meta.get("val")
    if not name.endswith("_") or not isinstance(value, torch.Tensor):
        return None
    packet = getattr(getattr(torch.ops, target.namespace), name.split("::")[1][:-1], None)
    plain = getattr(packet, target._overloadname, None)
    if not isinstance(plain, Overload):
        return None
    mine, theirs = ([(a.name, str(a.type)) for a in op._schema.arguments] for op in (target, plain))
    writes = [a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments]
    if mine != theirs or writes.index(True) or sum(writes) > 1 or len(plain._schema.returns) > 1:
        return None
    if not isinstance(written, fx.Node):
        return None
    memory = [*storages(node)]
    if not memory or memory != [*storages(written)]:
        return None  # traced without memory, as a program read from a file is
    # what is wider is computed wider, and then rounded: an operation and a cast
    for operand in node.all_input_nodes:
        for x in pytree.tree_leaves(operand.meta.get("val")):
            if isinstance(x, torch.Tensor) and x.dtype != value.dtype:
                if not value.is_floating_point() or x.is_floating_point() or x.is_complex():
                    return None
    return plain
