"""The driver of rules: finds matches, applies rules, counts what fired and why others declined.

Invariant held here, not by rules: a value computed inside a match is not used outside it (else the
rewrite would compute it twice), unless the rule says that its inside may be shared.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.builder import Builder, Rebuilder
from ..ir.errors import PassError
from ..ir.graph import Graph, Node, Value, symbols_in
from ..ir.weight_only import with_weights
from . import findings
from .patterns import Match, OpPattern, Pattern

# a chain is folded by one link a round or better; more rounds mean rules that undo each other
MAX_ROUNDS = 50


@dataclass(frozen=True)
class Decline:
    """What a rule returns when its pattern matched and it will not fire: why, for the report."""

    reason: str


RuleResult = Value | Decline | None


@dataclass(frozen=True)
class Rule:
    """A pattern and what becomes of it. The function's docstring is `before -> after`."""

    name: str
    patterns: tuple[OpPattern, ...]
    function: Callable[..., RuleResult]
    may_share: bool = False


def rule(
    *patterns: Pattern, may_share: bool = False
) -> Callable[[Callable[..., RuleResult]], Rule]:
    """Decorator: a rule for any of `patterns`. The function gets a Builder and what was bound.

    Values are those of the new graph; nodes are of the old one, for their attributes. Return the
    replacement of the root's result, `Decline(reason)`, or None when it is no match after all.
    `may_share`: values inside may also be used outside (they are views, or cheap to keep).
    """

    def make(function: Callable[..., RuleResult]) -> Rule:
        for pattern in patterns:
            if not isinstance(pattern, OpPattern):
                raise TypeError(f"rule {function.__name__}: the root must be an op")
        return Rule(function.__name__, patterns, function, may_share)  # type: ignore[arg-type]

    return make


def rules_among(names: Mapping[str, Any]) -> list[Rule]:
    """The rules of a module, given its `globals()`, in the order in which they stand there."""
    return [each for each in names.values() if isinstance(each, Rule)]


def rewrite(graph: Graph, rules: Iterable[Rule]) -> Graph:
    """`graph` after the rules have nothing more to do; the same object if none fired."""
    table: dict[str, list[tuple[Rule, OpPattern]]] = {}
    for each in rules:
        for pattern in each.patterns:
            table.setdefault(pattern.op.name, []).append((each, pattern))
    for _ in range(MAX_ROUNDS):
        sweep = _Sweep(graph, table)
        swept = replace_nodes(graph, sweep, {node.op.name for node in sweep.matches})
        if swept is graph:
            return graph
        graph = swept
    findings.current().note(f"stopped after {MAX_ROUNDS} rounds: rules may undo each other")
    return graph


def remove_dead(graph: Graph) -> Graph:
    """`graph` without nodes whose results nobody reads; the same object if there are none.

    Dims that they bind go with them: nothing else says what those are.
    """
    needed: set[Value] = set(graph.results)
    kept: list[Node] = []
    late = graph.late_symbols
    sizes: set[str] = set()  # those of them that kept nodes need
    for node in reversed(graph.nodes):
        if any(r in needed for r in node.results) or not sizes.isdisjoint(node.binds):
            needed.update(node.operands)
            kept.append(node)
            if late:
                sizes |= symbols_in(node) & late
    if len(kept) == len(graph.nodes):
        return graph
    symbols = graph.symbols
    if late:
        bound = {name for node in kept for name in node.binds}
        symbols = {name: s for name, s in symbols.items() if name not in late or name in bound}
    return graph.replace(nodes=tuple(reversed(kept)), symbols=symbols)


def drop_unread_weights(graph: Graph) -> Graph:
    """`graph` without weights that no node takes and that are no result; the same if none."""
    read = {v for node in graph.nodes for v in node.operands} | graph.results
    kept = tuple(w for w in graph.weights if w in read)
    return graph if len(kept) == len(graph.weights) else graph.replace(weights=kept)


def map_regions(graph: Graph, function: Callable[[Graph], Graph]) -> Graph:
    """`graph` with `function` applied to each sub-graph; the same object if none changed.

    The function sees a weight that a sub-graph is given as a weight.
    """

    def changed(node: Node, region: Graph) -> Graph:
        new = function(with_weights(graph, node, region))
        if (new.nodes, new.outputs) == (region.nodes, region.outputs):
            return region
        return new.replace(inputs=region.inputs, weights=())

    def mapped(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        new = {name: changed(node, region) for name, region in node.regions.items()}
        if new == node.regions:
            return None
        return b.node(node.op, operands, {**node.attrs, **new}).results

    return replace_nodes(graph, mapped, {n.op.name for n in graph.nodes if n.regions})


class _Sweep:
    """What rules make of each node. Matching reads the old graph, rules build the new one."""

    def __init__(self, graph: Graph, table: Mapping[str, list[tuple[Rule, OpPattern]]]):
        self.graph = graph
        self.replaced: set[Node] = set()
        self.matches: dict[Node, list[tuple[Rule, Match]]] = {}
        for node in graph.nodes:
            for each, pattern in table.get(node.op.name, ()):
                for match in pattern.match(node.results[0], Match()):
                    self.matches.setdefault(node, []).append((each, match))

    def __call__(
        self, b: Rebuilder, node: Node, operands: Sequence[Value]
    ) -> Sequence[Value] | None:
        """The result of the first rule that fires."""
        for each, match in self.matches.get(node, ()):
            if not self.replaced.isdisjoint(match.nodes):
                continue  # part of it is gone already: what is left is for the next sweep
            if not each.may_share and self.leaks(node, match):
                findings.current().decline(each.name, "a value inside is also used outside")
                continue
            mark = len(b.nodes)
            bound = {k: b[v] if isinstance(v, Value) else v for k, v in match.bound.items()}
            new = each.function(b, **bound)
            if isinstance(new, Value):
                if new.type != node.results[0].type:
                    raise PassError(
                        f"rule {each.name} changed a type",
                        where=node.loc or node.op.name,
                        facts=f"{node.results[0].type} became {new.type}",
                    )
                self.replaced.add(node)
                findings.current().fire(each.name)
                return [new]
            del b.nodes[mark:]  # what a declining rule began
            if isinstance(new, Decline):
                findings.current().decline(each.name, new.reason)
        return None

    def leaks(self, root: Node, match: Match) -> bool:
        inside = set(match.nodes)
        for node in match.nodes:
            if node is root or node.op.kind == "source":
                continue
            for result in node.results:
                if result in self.graph.results:
                    return True
                if any(user not in inside for user in self.graph.uses.get(result, ())):
                    return True
        return False


Replace = Callable[[Rebuilder, Node, Sequence[Value]], Sequence[Value] | None]


def replace_nodes(graph: Graph, replace: Replace, ops: Collection[str] | None = None) -> Graph:
    """Each node through `replace`: it gets mapped operands, returns results or None to keep it.

    With `ops`, only nodes of these ops.
    """
    if ops is not None and not any(node.op.name in ops for node in graph.nodes):
        return graph
    b = Rebuilder(graph)
    changed = False
    for node in graph.nodes:
        results = None
        if ops is None or node.op.name in ops:
            mark = len(b.nodes)
            b.loc = node.loc
            results = replace(b, node, [b[v] for v in node.operands])
            b.loc = None
            if results is None:
                del b.nodes[mark:]
        if results is None:
            b.copy(node)
            continue
        changed = True
        for old, new in zip(node.results, results, strict=True):
            b[old] = new
    return remove_dead(b.finish()) if changed else graph
