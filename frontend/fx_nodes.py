"""Nodes of an fx graph: what operation each is, where it comes from, and which are needed."""

from pathlib import Path
from typing import Any

import torch
from torch import fx

_TORCH = Path(torch.__file__).parent


def live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the output depends on."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def target_name(target: Any) -> str:
    """`aten.add.Tensor` for an ATen overload, the plain name for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", None) or str(target)


def location(node: fx.Node, strip: str = "") -> str | None:
    """The path of the module a node comes from, such as `model.layers.0.self_attn`."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = list(stack.values())[-1][0]
    return path.removeprefix(strip).strip(".") or None


def place(node: fx.Node, strip: str = "") -> str:
    """Module path and source line, for messages: the innermost line outside torch."""
    lines: list[str] = []
    users: list[str] = []
    for text in (node.meta.get("stack_trace") or "").splitlines():
        parts = text.split('"')
        # text in <> is the name of generated code: what torch makes of a branch or a loop's body
        if text.lstrip().startswith("File ") and len(parts) > 2 and not parts[1].startswith("<"):
            line = f"{Path(parts[1]).name}:{parts[2].split('line ')[-1].split(',')[0]}"
            lines.append(line)
            if not Path(parts[1]).is_relative_to(_TORCH):
                users.append(line)
    source = (users or lines or [""])[-1]
    where = location(node, strip) or ""
    return ", from ".join(part for part in (where, source) if part) or node.name
