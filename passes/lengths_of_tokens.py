"""What depends on how long a sequence is, token by token: rotary tables chosen by length."""

from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.layout import LENGTHS, NUM_TOKENS, POSITION_IDS
from ..ir.types import i64
from . import findings
from .manager import Pass
from .token_axis import rows_of


@dataclass(frozen=True)
class LengthsOfTokens(Pass):
    """A model may choose between two tables by the largest position it is given.

    Over a batch of sequences that is another number for each token: the length of its prompt, or
    its own number after that. Adds the input `lengths`. The choice goes down to the first value
    that has a row a token, which is computed both ways.
    """

    name = "lengths-of-tokens"
    keeps_signature = False

    def run(self, graph: Graph) -> Graph:
        positions = next((v for v in graph.inputs if v.name == POSITION_IDS), None)
        if positions is None:
            return graph
        largest = frozenset(n for n in graph.nodes if _is_largest(n, positions))
        if not largest:
            return graph
        made = _Chooser(graph, positions.shape[1]).run(largest)
        if isinstance(made, Node):
            findings.current().decline("length", f"{made.op.name} of a length is not a choice")
            return graph
        findings.current().fire("length")
        return made


def _is_largest(node: Node, positions: Value) -> bool:
    """max over all positions"""
    if node.op.name != "max" or any(d != 1 for d in node.results[0].shape):
        return False
    x = node.operands[0]
    while x.node is not None and (x.node.op.is_renaming or x.node.op.is_cast):
        x = x.node.operands[0]
    return x is positions


@dataclass(frozen=True)
class _Split:
    """A value as it is for each answer to a question, which is asked of every token."""

    condition: Value  # [t]
    then: Value
    other: Value


class _Chooser:
    def __init__(self, graph: Graph, tokens: Dim):
        self.graph, self.tokens = graph, tokens
        self.b = Rebuilder(graph)
        self.numbers: dict[Value, Value] = {}  # of which each token has its own -> [t]
        self.splits: dict[Value, _Split] = {}

    def run(self, largest: frozenset[Node]) -> Graph | Node:
        """The new graph; the node that cannot be computed token by token where there is one."""
        b = self.b
        lengths = b.input(LENGTHS, (1, self.tokens), i64)
        last = b.sub(b.reshape(lengths, shape=(self.tokens,)), b.constant(1, i64))
        for node in self.graph.nodes:
            with b.at(node.loc):
                if node in largest:
                    self.numbers[node.results[0]] = b.cast(last, dtype=node.results[0].dtype)
                elif any(v in self.numbers for v in node.operands):
                    if not self.ask(node):
                        return node
                elif any(v in self.splits for v in node.operands):
                    if not self.choose(node):
                        return node
                else:
                    b.copy(node)
        kept = (*self.graph.outputs, *self.graph.updates.values())
        if any(v in self.numbers or v in self.splits for v in kept):
            return next(n for n in self.graph.nodes if not {*n.results}.isdisjoint(kept))
        return b.finish()

    def ask(self, node: Node) -> bool:
        """A node that reads a number of each token: arithmetic of numbers, or a choice by one."""
        b, (result,) = self.b, node.results
        if node.op.is_renaming and all(d == 1 for d in result.shape):
            self.numbers[result] = self.numbers[node.operands[0]]
            return True
        if node.op.tree is None:
            return False
        if all(d == 1 for v in node.operands for d in v.shape):
            operands = [
                self.numbers[v] if v in self.numbers else b.reshape(b[v], shape=())
                for v in node.operands
            ]
            self.numbers[result] = b.node(node.op, operands, node.attrs).result
            return True
        condition, *sides = node.operands
        if node.op.name != "where" or any(v not in b for v in sides):
            return False
        then, other = (b.broadcast_to(b[v], shape=result.shape) for v in sides)
        self.splits[result] = _Split(self.numbers[condition], then, other)
        return rows_of(result.shape, NUM_TOKENS) is None

    def choose(self, node: Node) -> bool:
        """A node of what there is twice: twice, and chosen from where it has a row a token."""
        found = [self.splits[v] for v in node.operands if v in self.splits]
        if len({s.condition for s in found}) != 1 or len(node.results) != 1:
            return False
        condition, (result,) = found[0].condition, node.results
        sides = []
        for side in ("then", "other"):
            given = {v: getattr(s, side) for v, s in self.splits.items()}
            operands = [given[v] if v in given else self.b[v] for v in node.operands]
            sides.append(self.b.node(node.op, operands, node.attrs).result)
        axis = rows_of(result.shape, NUM_TOKENS)
        if axis is None:
            self.splits[result] = _Split(condition, *sides)
            return True
        shape = tuple(self.tokens if i == axis else 1 for i in range(result.type.rank))
        self.b[result] = self.b.where(self.b.reshape(condition, shape=shape), *sides)
        return True
