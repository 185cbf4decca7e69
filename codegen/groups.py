"""Groups of nodes while they form: who is with whom, and who depends on whom.

Invariant: groups never depend on each other in a circle, so they can be put in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from ..ir.axes import Axes
from ..ir.dim import Dim
from ..ir.graph import Graph, Node, Value
from ..ir.types import Shape


def squeezed(shape: Shape) -> tuple[Dim, ...]:
    """The shape without axes of size 1."""
    return tuple(d for d in shape if d != 1)


def spread(shape: Shape, like: Shape, index: Sequence[Dim]) -> tuple[Dim, ...]:
    """`index` over `like`, moved to the axes of `shape`, which differs in axes of size 1 only."""
    rest = iter(at for at, d in zip(index, like, strict=True) if d != 1)
    return tuple(0 if d == 1 else next(rest) for d in shape)


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel. `anchor` is the node that decides its template."""

    groups: "Groups"
    template: Any  # a Template of templates/, which are written in terms of groups
    anchor: Node
    nodes: set[Node] = field(default_factory=set)
    first: int = 0  # smallest and largest place of its nodes in the graph
    last: int = 0

    def makes(self, value: Value) -> bool:
        """Whether `value` is made of what the group computes, directly or through free nodes."""
        return any(self.groups.of[p] is self for p in self.groups.sources(value))

    def follows(self, node: Node) -> bool:
        """Whether `node` reads what the group computes."""
        return any(self.makes(v) for v in node.operands)

    def __repr__(self) -> str:
        return f"<{self.template.name} group of {len(self.nodes)} around {self.anchor.op.name}>"


class Groups:
    """All groups of a graph. Nodes that are in none are free: copied into each reader's group."""

    def __init__(self, graph: Graph, template_of: Callable[[Node], Any]):
        self.graph = graph
        self.axes = Axes(graph.facts)
        self.template_of = template_of
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.of: dict[Node, Group] = {}
        self._producers: dict[Node, tuple[Node, ...]] = {}
        self._readers: dict[Node, tuple[Node, ...]] = {}
        for node in graph.nodes:
            if node.op.cost != "free":
                self.make(node)

    def make(self, node: Node) -> Group:
        """A group of its own for `node`."""
        at = self.place[node]
        group = Group(self, self.template_of(node), node, {node}, at, at)
        self.of[node] = group
        self._forget()
        return group

    def alone(self, node: Node) -> bool:
        """Whether `node` is in a group of its own."""
        return node in self.of and self.of[node].nodes == {node}

    def free(self, node: Node) -> None:
        """Take a node that is alone in its group out: its readers will compute it again."""
        assert self.of[node].nodes == {node}, "only a node alone in its group can be freed"
        del self.of[node]
        self._forget()

    def _forget(self) -> None:
        self._producers.clear()
        self._readers.clear()

    def all(self) -> list[Group]:
        """Groups by the place of their first node."""
        return sorted(dict.fromkeys(self.of.values()), key=lambda g: g.first)

    # ---- who reads whom, through free nodes ----

    def producers(self, node: Node) -> tuple[Node, ...]:
        """Grouped nodes whose results `node` reads, directly or through free nodes."""
        if node not in self._producers:
            found = dict.fromkeys(self.graph.binders.get(node, ()))
            for operand in node.operands:
                found |= dict.fromkeys(self.sources(operand))
            self._producers[node] = tuple(found)
        return self._producers[node]

    def sources(self, value: Value) -> tuple[Node, ...]:
        """Grouped nodes that `value` is made of, through free nodes."""
        node = value.node
        if node is None:
            return ()
        return (node,) if node in self.of else self.producers(node)

    def readers(self, node: Node) -> tuple[Node, ...]:
        """Grouped nodes that read `node`'s results, directly or through free nodes."""
        if node not in self._readers:
            found: dict[Node, None] = {}
            users = [u for result in node.results for u in self.graph.uses.get(result, ())]
            for user in (*users, *self.graph.sized.get(node, ())):
                found |= dict.fromkeys((user,) if user in self.of else self.readers(user))
            self._readers[node] = tuple(found)
        return self._readers[node]

    def reading_groups(self, node: Node) -> list[Group]:
        """Groups that read `node`, without its own, in order."""
        own = self.of.get(node)
        found = dict.fromkeys(self.of[r] for r in self.readers(node))
        return [g for g in found if g is not own]

    def leaves(self, node: Node) -> bool:
        """Whether a result of `node`, or a free view of it, is a result of the graph."""
        if not self.graph.results.isdisjoint(node.results):
            return True
        users = (u for result in node.results for u in self.graph.uses.get(result, ()))
        return any(user not in self.of and self.leaves(user) for user in users)

    def stores_whole(self, group: Group, shape: Shape) -> bool:
        """Whether others read a value of `shape`, which its anchor reads, of what a group makes."""
        if group.anchor.operands[0].shape != shape:
            return False
        made = (n for n in group.nodes if squeezed(n.results[0].shape) == squeezed(shape))
        return any(self.leaves(n) or self.reading_groups(n) for n in made)

    def next_groups(self, group: Group) -> list[Group]:
        """Groups that read what `group` computes."""
        found = dict.fromkeys(self.of[r] for node in group.nodes for r in self.readers(node))
        return [other for other in found if other is not group]

    def same_elements(self, value: Value) -> Node | None:
        """The grouped node that makes `value`, through casts and added or dropped axes of 1."""
        node = value.node
        while node is not None and node not in self.of:
            if len(node.operands) != 1 or not self.keeps_order(node):
                return None
            node = node.operands[0].node
        return node

    def keeps_order(self, node: Node) -> bool:
        """Whether a node of one operand has its elements in the same order: axes of 1 aside."""
        if node.op.kind == "view" and node.op.inverse is None:
            return False  # an index cannot be followed through it
        (value,), (result,) = node.operands, node.results
        ((*lies,),) = self.axes.of(node)
        large = [i for i, size in enumerate(result.shape) if size != 1]
        return [at for at, size in zip(lies, value.shape) if size != 1] == large

    def between(self, start: Node, end: Value) -> list[Node]:
        """Nodes after `start` that `end` is made of, in order."""
        found: set[Node] = set()
        stack = [end]
        while stack:
            node = stack.pop().node
            if node is not None and node not in found and self.place[node] > self.place[start]:
                found.add(node)
                stack += node.operands
        return sorted(found, key=self.place.__getitem__)

    def takes_effort(self, node: Node) -> bool:
        """Whether an expensive operation makes a value, or cheap ones of what one makes."""
        stack, seen = [node], {node}
        while stack:
            each = stack.pop()
            if each.op.kind != "elementwise" or self.of[each].template.grows_over != "anything":
                continue
            if each.op.cost == "expensive":
                return True
            stack += [before for before in self.producers(each) if before not in seen]
            seen.update(stack)
        return False

    # ---- merging ----

    def path(self, start: Group, end: Group, *, direct: bool) -> bool:
        """Whether `end` depends on `start`; with direct=False through some third group only."""
        stack = [g for g in self.next_groups(start) if direct or g is not end]
        seen: set[Group] = set(stack)
        while stack:
            group = stack.pop()
            if group is end:
                return True
            if group.first > end.last:
                continue  # groups after end's last node cannot come before it
            for following in self.next_groups(group):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return False

    def can_merge(self, first: Group, second: Group) -> bool:
        """Whether joining the two makes no circle."""
        return not (
            self.path(first, second, direct=False) or self.path(second, first, direct=False)
        )

    def merge(self, into: Group, other: Group) -> None:
        """Move all nodes of `other` into `into`."""
        into.nodes |= other.nodes
        into.first, into.last = min(into.first, other.first), max(into.last, other.last)
        for node in other.nodes:
            self.of[node] = into

    # ---- the end: groups in order ----

    def ordered(self) -> list[Group]:
        """Groups in an order in which each comes after those it reads."""
        sorter = TopologicalSorter(dict.fromkeys(self.all(), ()))
        for group in self.all():
            for following in self.next_groups(group):
                sorter.add(following, group)
        sorter.prepare()
        ready: list[Group] = []
        order: list[Group] = []
        while sorter.is_active():
            ready = sorted([*ready, *sorter.get_ready()], key=lambda g: -g.first)
            order.append(ready.pop())
            sorter.done(order[-1])
        return order

    def members(self, group: Group) -> list[Node]:
        """Nodes of the group and the free nodes it needs, in the graph's order."""
        needed: set[Node] = set(group.nodes)
        stack: list[Node] = list(group.nodes)
        while stack:
            for operand in stack.pop().operands:
                node = operand.node
                if node is not None and node not in self.of and node not in needed:
                    needed.add(node)
                    stack.append(node)
        return sorted(needed, key=self.place.__getitem__)
