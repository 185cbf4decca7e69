"""Printer of graphs. The grammar is in docs/ir.md; `ir/parse.py` reads it back to an equal graph.

Values are numbered in order, so the text does not depend on how the graph was made.
"""

from collections.abc import Mapping
from typing import Any

from .dim import Expr, Symbol
from .graph import Graph, Node, Value
from .op import REQUIRED
from .plan import Plan
from .types import DType, TensorType


def print_graph(graph: Graph, *, locs: bool = False) -> str:
    """The graph as text. With `locs`, each node is followed by where it comes from."""
    return "\n".join(_lines(graph, "", locs)) + "\n"


def print_plan(plan: Plan) -> str:
    """The plan as text: that of its graph, and after each node its kernel and its places."""
    return "\n".join(_lines(plan.graph, "", False, plan)) + "\n"


def _lines(graph: Graph, label: str, locs: bool, plan: Plan | None = None) -> list[str]:
    """The lines of a graph; `label` says of a sub-graph which of its node's it is."""
    names = value_names(graph)
    lines = [f"{label}graph @{graph.name}"]
    lines += [f"  dim {_symbol(s)}" for s in graph.symbols.values()]
    lines += [f"  input {names[v]} : {v.type}" for v in graph.inputs]
    lines += [f"  weight {names[v]} {v.name!r} : {v.type}" for v in graph.weights]
    lines += [f"  state {names[v]} : {v.type}" for v in graph.states]
    lines.append("{")
    for node in graph.nodes:
        lines.append(f"  {print_node(node, names, locs=locs)}{_placed(node, plan)}")
        for name, region in node.regions.items():
            lines += [f"    {line}" for line in _lines(region, f"{name} = ", locs)]
    lines += [f"  update %{name} = {names[v]}" for name, v in graph.updates.items()]
    lines.append(f"  return {', '.join(names[v] for v in graph.outputs)}".rstrip())
    lines.append("}")
    return lines


def value_names(graph: Graph) -> dict[Value, str]:
    """How each value of `graph` is written."""
    names = {v: f"%{v.name}" for v in (*graph.inputs, *graph.states)}
    names.update((v, f"%w{i}") for i, v in enumerate(graph.weights))
    results = (r for node in graph.nodes for r in node.results)
    names.update((v, f"%{i}") for i, v in enumerate(results))
    return names


def print_node(node: Node, names: Mapping[Value, str], *, locs: bool = False) -> str:
    """One node as text; `names` from `value_names`."""
    results = ", ".join(names.get(r, "%?") for r in node.results)
    operands = ", ".join(names.get(v, "%?") for v in node.operands)
    attrs = ", ".join(f"{k}={format_attr(v)}" for k, v in shown_attrs(node).items())
    types = ", ".join(str(r.type) for r in node.results)
    text = f"{results} = {node.op.name}({operands})"
    text += (f" {{{attrs}}}" if attrs else "") + f" : {types}"
    return text + (f"   # {node.loc}" if locs and node.loc else "")


def _placed(node: Node, plan: Plan | None) -> str:
    if plan is None:
        return ""
    offsets = [plan.offsets.get(r) for r in node.results]
    text = f" in {plan.group_of[node]}"
    if all(o is None for o in offsets):
        return text
    return text + " at " + ", ".join("-" if o is None else str(o) for o in offsets)


def shown_attrs(node: Node) -> dict[str, Any]:
    """Attributes that differ from their default, sub-graphs apart."""
    declared, regions = node.op.attrs, node.regions
    return {
        name: value
        for name, value in node.attrs.items()
        if name not in regions
        and (declared[name][1] is REQUIRED or not _same(value, declared[name][1]))
    }


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def format_attr(value: Any) -> str:
    """An attribute as a literal: dims, dtypes, types and sequences print bare."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (Expr, TensorType)):
        return str(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(format_attr(v) for v in value)}]"
    return repr(value)


def _symbol(symbol: Symbol) -> str:
    text = f"{symbol.name} in {symbol.span}"
    if symbol.multiple != 1:
        text += f" multiple {symbol.multiple}"
    return text + (f" hint {symbol.hint}" if symbol.hint is not None else "")
