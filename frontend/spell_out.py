"""Puts what a trace holds of the first layer of a kind where it holds one node for a layer.

See repeated.py, which makes such programs.
"""

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from .in_place import storages, written_storages


def is_short(program: ExportedProgram) -> bool:
    """Whether a program has nodes of ours, which `spell_out` is to take out."""
    return any(_is_edge(node) or _is_again(node) for node in program.graph.nodes)


def writes_at_edges(program: ExportedProgram) -> bool:
    """Whether a node writes into what enters or leaves a layer, or into what the program is given.

    The program does not say who else would see it.
    """
    held = {
        storage
        for node in program.graph.nodes
        if node.op == "placeholder"
        or any(_is_edge(x) or _is_again(x) for x in node.all_input_nodes)
        for storage in storages(node)
    }
    return not held.isdisjoint(written_storages(program.graph))


def spell_out(program: ExportedProgram) -> bool:
    """Put in place of each layer what the first of its kind holds; -> whether that can be done.

    It cannot, and the program is good for nothing, where that is no function of what the layer is
    given and of weights: where it leaves something behind or reads what another layer left.
    """
    graph, signature = program.graph, program.graph_signature
    if signature.buffers_to_mutate or signature.parameters_to_mutate:
        return False
    edges = {node.args[1:3]: node for node in graph.nodes if _is_edge(node)}
    inputs = zip(graph.find_nodes(op="placeholder"), signature.input_specs, strict=True)
    named = (InputKind.PARAMETER, InputKind.BUFFER)
    weights = {spec.target: node for node, spec in inputs if spec.kind in named}
    paths = {node: target for target, node in weights.items()}
    renamed: dict[str, str] = {}
    for again in filter(_is_again, list(graph.nodes)):
        values, first, path = again.args
        begin, end = (edges.get((first, is_end)) for is_end in (False, True))
        if begin is None or end is None or not _is_function(begin, end):
            return False
        entered = {node: values[node.args[1]] for node in begin.users}
        copies: dict[fx.Node, fx.Node] = dict(entered)
        old = begin.args[3]

        def other(node: fx.Node, copies=copies, old=old, path=path) -> fx.Node:
            own = paths.get(node)
            if own is not None:  # without a place of its own it is one tensor in both
                return weights.get(_moved(own, old, path), node)
            return copies.get(node, node)

        with graph.inserting_before(again):
            for node in _between(begin, end):
                if node not in entered and not _is_size(node):
                    copy = copies[node] = graph.node_copy(node, other)
                    copy.meta = {**node.meta, "nn_module_stack": _stack(node, old, path)}
        for user in list(again.users):
            result = other(end.args[0][user.args[1]])
            renamed[user.name] = result.name
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        graph.erase_node(again)
    for edge in edges.values():
        for user in list(edge.users):
            value = edge.args[0][user.args[1]]
            renamed[user.name] = value.name
            user.replace_all_uses_with(value)
            graph.erase_node(user)
        graph.erase_node(edge)
    for spec in signature.output_specs:
        name = getattr(spec.arg, "name", None)
        while name in renamed:
            name = spec.arg.name = renamed[name]
    program.graph_module.recompile()
    return True


def _is_edge(node: fx.Node) -> bool:
    return node.target is torch.ops.tilewright.layer_edge.default


def _is_again(node: fx.Node) -> bool:
    return node.target is torch.ops.tilewright.layer_again.default


def _between(begin: fx.Node, end: fx.Node) -> Iterator[fx.Node]:
    node = begin.next
    while node is not end:
        yield node
        node = node.next


def _is_size(node: fx.Node) -> bool:
    """Whether a node is a number: the same for all that are alike."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int)


def _is_function(begin: fx.Node, end: fx.Node) -> bool:
    """Whether nodes between compute from what enters, weights and sizes alone, and for the end."""
    between = list(_between(begin, end))
    inside = [node for node in between if not _is_size(node)]
    known = {begin, end, *inside}
    return not any("unbacked_bindings" in node.meta for node in between) and all(
        node.op == "call_function"
        and (node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload))
        and known.issuperset(user for user in node.users if not _is_size(user))
        and all(x in known or x.op == "placeholder" or _is_size(x) for x in node.all_input_nodes)
        for node in inside
    )


def _moved(path: str, old: str, new: str) -> str:
    """A path under `old` as the one under `new`; any other as it is."""
    return new + path[len(old) :] if path == old or path.startswith(f"{old}.") else path


def _stack(node: fx.Node, old: str, new: str) -> dict[str, Any]:
    """The modules around a node, as they are around its copy."""
    stack = node.meta.get("nn_module_stack") or {}
    return {
        _moved(key, old, new): (_moved(path, old, new), *kind)
        for key, (path, *kind) in stack.items()
    }
