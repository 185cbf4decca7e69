"""Compute logits for the rows that are wanted, and what only they need for those rows only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.axes import Axes
from ..ir.builder import Builder, Rebuilder
from ..ir.dim import Dim, Expr, divide_exactly, substitute, symbol
from ..ir.errors import PassError
from ..ir.graph import Graph, Node, Value
from ..ir.indexing import replaced
from ..ir.layout import LOGIT_ROWS, NUM_ROWS
from ..ir.types import f32, i32
from . import findings
from .manager import Pass
from .rewrite import remove_dead
from .token_axis import TokenFacts, analyse, follow, rows_of


@dataclass(frozen=True)
class NarrowLogits(Pass):
    """A step needs one row of logits a sequence, a prompt has hundreds.

    The selection of rows goes up from the logits past every op that treats tokens one by one and
    whose result nobody else reads: past the head, the last MLP, up to the last attention. Adds the
    input logit_rows, makes the logits f32 [rows, V] and adds their argmax as a second output.
    """

    name = "narrow-logits"
    keeps_signature = False
    max_rows: int | None = None
    argmax: bool = True

    def run(self, graph: Graph) -> Graph:
        if NUM_ROWS in graph.symbols:
            raise PassError(
                f"narrow-logits: the graph already has a symbol {NUM_ROWS!r};"
                " is it narrowed already?"
            )
        facts = analyse(graph)
        axis = facts.axes[graph.outputs[0]]
        if axis is None:
            raise PassError("narrow-logits: the first output has no token axis")
        tail = decide(graph, facts)
        findings.current().fired["narrowed node"] += len(tail)
        return apply(graph, facts, tail, self.max_rows, self.argmax)


def decide(graph: Graph, facts: TokenFacts) -> frozenset[Node]:
    """Nodes that only the logits need, and that treat tokens one by one."""
    axes = Axes(graph.facts)
    tail: set[Node] = set()
    logits = graph.outputs[0]
    kept = set(graph.updates.values())
    for node in reversed(graph.nodes):
        users = [u for result in node.results for u in graph.uses.get(result, ())]
        wanted = logits in node.results or bool(users)
        if wanted and kept.isdisjoint(node.results) and all(u in tail for u in users):
            has_rows = any(facts.symbol in result.type.symbols for result in node.results)
            if has_rows and _is_row_wise(node, facts, axes):
                tail.add(node)
    return frozenset(tail)


def _is_row_wise(node: Node, facts: TokenFacts, axes: Axes) -> bool:
    places = [facts.axes[v] for v in node.operands]
    if node.op.kind == "attention":  # rows of its result are found by the metadata of all
        return False
    return all(p is None for p in places) or isinstance(
        follow(node, places, axes, facts.symbol), int
    )


def apply(
    graph: Graph, facts: TokenFacts, tail: frozenset[Node], max_rows: int | None, argmax: bool
) -> Graph:
    """The graph with `tail` over the selected rows."""
    b = Rebuilder(graph)
    rows = b.dim(NUM_ROWS, 1, max_rows, hint=1)
    index = b.input(LOGIT_ROWS, (rows,), i32)
    to_rows = {facts.symbol: rows}
    selected: dict[Value, Value] = {}

    def select(value: Value) -> Value:
        """The wanted rows of a value from above the tail."""
        axis = facts.axes[value]
        axis = rows_of(value.shape, facts.symbol) if axis is None else axis
        if axis is None:
            return b[value]
        if value not in selected:
            selected[value] = rows_at(b, b[value], index, axis, facts.symbol)
        return selected[value]

    for node in graph.nodes:
        if node not in tail:
            b.copy(node)
            continue
        with b.at(node.loc):
            operands = [b[v] if v.node in tail else select(v) for v in node.operands]
            attrs = {name: _renamed(value, to_rows) for name, value in node.attrs.items()}
            new = b.node(node.op, operands, attrs)
        for result, narrowed in zip(node.results, new.results, strict=True):
            b[result] = narrowed
    logits = graph.outputs[0]
    out = b[logits] if logits.node in tail else select(logits)
    out = b.reshape(out, shape=(rows, out.shape[-1]))
    if out.dtype != f32:
        out = b.cast(out, dtype=f32)
    outputs = (out, b.argmax(out, axis=-1)) if argmax else (out,)
    if len(graph.outputs) > 1:
        findings.current().note(f"{len(graph.outputs) - 1} outputs besides the logits dropped")
    return remove_dead(b.finish().replace(outputs=outputs))


def rows_at(b: Builder, x: Value, index: Value, axis: int, tokens: str) -> Value:
    """The rows of the tokens `index` along an axis that has some for each."""
    shape, each = x.shape, divide_exactly(x.shape[axis], symbol(tokens))
    assert each is not None, "a token axis has as many rows for each token"
    if each != 1:
        x = b.reshape(x, shape=(*shape[:axis], symbol(tokens), each, *shape[axis + 1 :]))
    x = b.gather(x, index, axis=axis)
    return x if each == 1 else b.reshape(x, shape=replaced(shape, axis, index.shape[0] * each))


def _renamed(value: Any, symbols: Mapping[str, Dim]) -> Any:
    if isinstance(value, Expr):
        return substitute(value, symbols)
    if isinstance(value, tuple):
        return tuple(_renamed(v, symbols) for v in value)
    return value
