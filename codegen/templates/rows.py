"""Which nodes run over the same rows as a reduction: what a kernel over rows may hold."""

from ...ir.axes import Along, Axes
from ...ir.dim import product
from ...ir.graph import Node, Value
from ..groups import Group, squeezed
from .template import orders_elements


def reduced_axes(axes: Axes, node: Node) -> frozenset[int]:
    """The axes of its first operand along which a reduction, a norm or a softmax mixes."""
    return frozenset(i for i, along in enumerate(axes.of(node)[0]) if isinstance(along, str))


class Rows:
    """The rows of a group around a reduction, and what the group's values hold of them."""

    def __init__(self, group: Group):
        self.group, self.axes = group, group.groups.axes
        self.shape = group.anchor.operands[0].shape
        self.reduced = reduced_axes(self.axes, group.anchor)
        self.kept = [i for i in range(len(self.shape)) if i not in self.reduced]
        self.rows = squeezed(tuple(self.shape[i] for i in self.kept))
        self.whole = squeezed(self.shape)

    def why_not(self, node: Node) -> str | None:
        """Why a reader of the group's values cannot be computed row by row with them."""
        if node.op.kind == "view":
            return orders_elements(self.group, node)
        is_row = node.op.kind == "elementwise" and squeezed(node.results[0].shape) == self.rows
        if self.reduced != frozenset(range(len(self.kept), len(self.shape))) and not is_row:
            return "the rows that it reads lie across one another"
        if node.op.kind in ("reduce", "composite"):
            if node.op.kind == "composite" and not node.op.is_whole:
                return f"{node.op.name} is not decomposed"
            same = node.operands[0].shape == self.shape
            if not same or reduced_axes(self.axes, node) != self.reduced:
                return "it reduces other rows"
        elif node.op.kind != "elementwise":
            return f"a {node.op.kind} op follows in a kernel of its own"
        elif not (self.stores(node) or self.is_part_of_row(node)):
            return "it is over other rows"
        return (
            None if self.is_aligned(node) else "it reads the reduction at other rows than its own"
        )

    def stores(self, node: Node) -> bool:
        """Whether a result has the shape of the rows' values, or of all that is reduced."""
        return squeezed(node.results[0].shape) in (self.rows, self.whole)

    def are_swept_again(self, most: int) -> bool:
        """Whether rows of more than `most` elements are read again once a reduction is known."""
        size = product(self.shape[i] for i in self.reduced)
        if isinstance(size, int) and size <= most:
            return False
        groups = self.group.groups
        later: set[Node] = set()
        for node in sorted(self.group.nodes, key=groups.place.__getitem__):
            combines = node.op.kind in ("reduce", "composite")
            is_later = not later.isdisjoint(groups.producers(node))
            if is_later and (combines or squeezed(node.results[0].shape) == self.whole):
                return True
            if is_later or combines:
                later.add(node)
        return False

    def is_part_of_row(self, node: Node) -> bool:
        """Whether a result has the rows and part of the reduced axis (a half, say)."""
        return len(self.reduced) == 1 and squeezed(node.results[0].shape[:-1]) == self.rows

    def is_aligned(self, node: Node) -> bool:
        """Whether each row of what the node makes reads that row of the group's values only."""
        combines = node.op.kind in ("reduce", "composite")
        known: dict[Value, list[Along]] = {}
        for value in node.operands if combines else node.results:
            large = [i for i, size in enumerate(value.shape) if size != 1]
            places = self._places(value, known)
            # one number a row, [4], beside a whole [4, 4] would lie along the axis behind the rows
            if (self.group.makes(value) or value.node is node) and places != large[: len(places)]:
                return False
        return True

    def _places(self, value: Value, known: dict[Value, list[Along]]) -> list[Along]:
        """Along which axis of the value each axis of the rows lies; words where it is mixed."""
        if value not in known:
            node, group = value.node, self.group
            large = [i for i in self.kept if self.shape[i] != 1]
            if node is group.anchor:
                known[value] = [self.axes.of(node)[0][i] for i in large]
            elif node is None or not (group.makes(value) or group.follows(node)):
                known[value] = [None] * len(large)
            else:
                operands = [self._places(v, known) for v in node.operands]
                known[value] = [self._follow(node, along) for along in zip(*operands)]
        return known[value]

    def _follow(self, node: Node, places: tuple[Along, ...]) -> Along:
        mixed = [along for along in places if isinstance(along, str)]
        return mixed[0] if mixed else self.axes.follow(node, places)
