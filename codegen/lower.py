"""From a group of nodes to a kernel in loop IR: asks the template, and names what it needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.abi import RECORD_WORDS
from ..ir.builder import Builder
from ..ir.dim import symbol
from ..ir.encoding import Encoding
from ..ir.graph import Graph, Node, Value
from ..ir.plan import results_of
from ..ir.program import DataCheck
from ..ir.ranges import Ranges
from ..ir.types import TensorType, i64
from .elements import kernel_symbols
from .inline import Inliner
from .loops import LoopKernel, Param
from .templates import template_of


@dataclass(frozen=True)
class Lowered:
    """A kernel and, parameter by parameter, the graph's values it is given.

    None stands for the records of `checks`.
    """

    kernel: LoopKernel
    values: tuple[Value | None, ...]
    checks: tuple[DataCheck, ...] = ()


def lower_group(
    graph: Graph,
    nodes: Sequence[Node],
    encodings: dict[Value, Encoding],
    ranges: Ranges | None = None,
) -> Lowered:
    """The kernel of one group. UnsupportedOp when the nodes do not fit one template.

    `ranges` says between which numbers indices and divisors lie, so that few need a check.
    """
    results = results_of(graph, nodes)
    nodes, origin = _expand(nodes, results)
    inliner = Inliner(graph, nodes, encodings, ranges)
    outputs = [origin[r] for r in results]
    template = template_of(*nodes)
    parts = template.lower(inliner, nodes, outputs)
    # parameters made for expanded copies stand for the original values
    back = {copy: value for value, copy in origin.items()}
    params: list[Param] = list(inliner.params)
    values: list[Value | None] = [back.get(v, v) for v in inliner.values]
    records = None
    if inliner.checks:
        records = len(params)
        params.append(Param(TensorType((len(inliner.checks), RECORD_WORDS), i64), True))
        values.append(None)
    names = kernel_symbols(parts)
    kernel = LoopKernel(
        tuple(params),
        parts,
        names,
        template.name,
        records,
        {n: graph.facts.hint(symbol(n)) for n in names},
        {n: graph.symbols[n] for n in names},
    )
    return Lowered(kernel, tuple(values), tuple(inliner.checks))


def _expand(
    nodes: Sequence[Node], results: Sequence[Value]
) -> tuple[list[Node], dict[Value, Value]]:
    """Nodes with composites taken apart, and where each original result went."""
    b = Builder("group")
    to: dict[Value, Value] = {}
    for node in nodes:
        operands = [to.get(v, v) for v in node.operands]
        if node.op.kind != "composite":
            new = b.node(node.op, operands, node.attrs, loc=node.loc)
            to.update(zip(node.results, new.results))
        else:
            with b.at(node.loc):
                out = node.op.decomposition(b, *operands, **node.attrs)
            to[node.results[0]] = out
    return b.nodes, {r: to[r] for r in results}
