"""Statistics of rows, with the arithmetic that they go into, which products make for themselves."""

from collections.abc import Iterable

from ...ir.builder import decomposed
from ...ir.graph import Node, Value
from ...ir.target import Target
from ..groups import Groups, squeezed
from ..loops import SUM

# Products that may each make the statistics of a norm again. A compromise: it saves a step of few
# rows a launch; of many rows each product computes its x before, and each has a copy of it.
MAX_READERS = 4
PLAIN, ROW, SCALED = "no statistic", "one number a row", "elements times numbers of their row"


class Statistics:
    """A norm, or a reduction with what makes a norm of it, and who reads the result."""

    def __init__(self, groups: Groups, start: Node, target: Target):
        self.groups, self.start, self.target = groups, start, target
        self.nodes: dict[Node, None] = {start: None}
        self.readers: dict[Node, None] = {}
        stack = [start]
        while stack:
            for reader in groups.readers(stack.pop()):
                if reader in self.nodes or reader in self.readers:
                    continue
                if groups.alone(reader) and self.is_made_of_row(reader):
                    self.nodes[reader] = None
                    stack.append(reader)
                else:
                    self.readers[reader] = None
        for node in list(self.nodes):
            self.take_feeder(node)

    def is_made_of_row(self, node: Node) -> bool:
        """Whether a node is cheap arithmetic on one row's elements and its statistics.

        Of two operands as large as the rows one comes from elsewhere: a residual, not a norm.
        """
        row = self.start.operands[0].shape
        if node.op.kind == "reduce":
            return node.operands[0].shape == row
        wide = {v for v in node.operands if squeezed(v.shape) == squeezed(row)}
        return node.op.kind == "elementwise" and node.op.cost != "expensive" and len(wide) <= 1

    def take_feeder(self, node: Node) -> None:
        """What only the statistics read, as the squares of a norm."""
        maker = node.operands[0].node
        if node.op.kind == "reduce" and maker is not None and self.groups.alone(maker):
            is_cheap = maker.op.kind == "elementwise" and maker.op.cost != "expensive"
            if is_cheap and all(reader in self.nodes for reader in self.groups.readers(maker)):
                self.nodes[maker] = None

    @property
    def feeds_products(self) -> bool:
        """Whether a product, or what is like one, is among the readers."""
        return any(self.groups.of[r].template.grows_over == "elements" for r in self.readers)

    def problem(self) -> str | None:
        """Why the statistics cannot be made again by each product that reads them."""
        groups = self.groups
        if any(groups.leaves(n) for n in self.nodes):
            return "the norm is a result of the graph"
        if not self.readers:
            return "nobody reads the norm"
        if len(self.readers) > MAX_READERS:
            return f"{len(self.readers)} products read the norm, the limit is {MAX_READERS}"
        for reader in self.readers:
            group = groups.of[reader]
            if reader is not group.anchor or group.template.grows_over != "elements":
                return f"{reader.op.name} reads the norm, not only products"
            for node in self.nodes:
                if (problem := group.template.why_not(group, node)) is not None:
                    return problem
        if self.follows_reduction():
            return "it joins the reduction before it, which reads its rows anyway"
        if self.target.is_gpu and not self.follow_the_sums():
            return "x needs its statistics first: a GPU is faster with the norm in a kernel before"
        return None

    def follow_the_sums(self) -> bool:
        """Whether all statistics are factors of the product's sums, made in the same sweep of x."""
        return self.are_factors(sorted(self.nodes, key=self.groups.place.__getitem__), {})

    def are_factors(self, nodes: Iterable[Node], known: dict[Value, str]) -> bool:
        """Whether no node makes of statistics what is not PLAIN, ROW or SCALED; fills `known`."""
        for node in nodes:
            of = [_known(v, known) for v in node.operands]
            if node.op.kind == "composite":
                graph = decomposed(node.op, (v.type for v in node.operands), node.attrs)
                if not self.are_factors(graph.nodes, dict(zip(graph.inputs, of))):
                    return False
                found = SCALED
            elif node.op.kind == "reduce":
                if set(of) != {PLAIN} or node.op.combine != SUM:
                    return False
                found = ROW
            elif set(of) == {PLAIN}:
                found = PLAIN
            elif squeezed(node.results[0].shape) != squeezed(self.start.operands[0].shape):
                found = ROW
            elif node.op.kind == "elementwise" and not node.op.is_cast:
                if node.op.tree.fn not in ("mul", "div"):
                    return False
                if node.op.tree.fn == "div" and (of[0] == ROW or of[1] == SCALED):
                    return False
                found = SCALED
            else:
                (found,) = of
            known[node.results[0]] = found
        return True

    def follows_reduction(self) -> bool:
        """Whether x is made from another norm's (or reduction's) rows and their statistics."""
        groups, (value, *_) = self.groups, self.start.operands
        shape, stack, seen = squeezed(value.shape), [value], {self.start}
        while stack:
            maker = groups.same_elements(stack.pop())
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            template = groups.of[maker].template
            if template.grows_over == "rows" and squeezed(maker.operands[0].shape) == shape:
                return True
            if template.grows_over == "anything" and maker.op.kind == "elementwise":
                stack += maker.operands
        return False


def _known(value: Value, known: dict[Value, str]) -> str:
    """What a value is, through views."""
    while value not in known and value.node is not None and value.node.op.kind == "view":
        value = value.node.operands[0]
    return known.get(value, PLAIN)
