"""Statistics of rows, with the arithmetic that they go into, which products make for themselves."""

from ...ir.graph import Node
from ..groups import Groups, squeezed

# Products that may each make the statistics of a norm again. A compromise: it saves a step of few
# rows a launch; of many rows each product computes its x before, and each has a copy of it.
MAX_READERS = 4


class Statistics:
    """A norm, or a reduction with what makes a norm of it, and who reads the result."""

    def __init__(self, groups: Groups, start: Node):
        self.groups, self.start = groups, start
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
        return None

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
