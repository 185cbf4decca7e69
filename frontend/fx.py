"""Imports a `torch.fx.GraphModule` by exporting it again: one importer, one set of rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..ir.errors import UnsupportedModel
from .torch_export import Imported, import_module

_META_KEYS = ("val", "example_value")  # where tracers keep the tensor that a node stood for


def import_graph_module(
    module: fx.GraphModule,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str = "main",
) -> Imported:
    """Import an fx graph module.

    Without `args`, example inputs are made from the shapes its placeholders were traced with;
    `UnsupportedModel` if the tracer recorded none. The rest is as for `import_module`.
    """
    if args is None and not kwargs:
        args = example_inputs(module)
    return import_module(module, args or (), kwargs, dynamic_shapes=dynamic_shapes, name=name)


def example_inputs(module: fx.GraphModule) -> tuple[Any, ...]:
    """Zeros of the shapes and dtypes that the placeholders of a graph module were traced with."""
    return tuple(_example(node) for node in module.graph.nodes if node.op == "placeholder")


def _example(node: fx.Node) -> Any:
    known = [node.meta[key] for key in _META_KEYS if key in node.meta]
    if known and isinstance(known[0], torch.Tensor):
        tensor = known[0]
        sizes = [_concrete(size) for size in tensor.shape]
        return torch.zeros(sizes, dtype=tensor.dtype, device=tensor.device)
    if known and not isinstance(known[0], torch.SymInt):
        return known[0]
    recorded = node.meta.get("tensor_meta")
    if recorded is not None:
        return torch.zeros([_concrete(size) for size in recorded.shape], dtype=recorded.dtype)
    if node.args:
        return node.args[0]  # the default of an optional argument
    raise UnsupportedModel(
        "the graph module does not say what its inputs are",
        where=f"placeholder {node.target}",
        facts=f"its metadata has {', '.join(node.meta) or 'nothing'}",
        fix="pass example inputs",
    )


def _concrete(size: Any) -> int:
    if isinstance(size, torch.SymInt):
        return int(size.node.hint)
    return int(size)
