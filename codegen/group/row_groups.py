"""Groups around a reduction: what of the nodes before and after runs over the same rows."""

from collections.abc import Callable

from ...ir.dim import Dim
from ...ir.graph import Node, Value
from ...ir.op import normalize_axis
from ...ir.report import Findings
from ...ir.types import Shape
from .grouping import Group, Groups

Refuse = Callable[[str, str, Value | None], None]  # (what, why, the value that moves for it)


def squeezed(shape: Shape) -> tuple[Dim, ...]:
    """The shape without axes of size 1."""
    return tuple(d for d in shape if d != 1)


class RowGroup:
    """Grows one group around a reduction."""

    def __init__(self, groups: Groups, group: Group, refuse: Refuse, findings: Findings):
        self.groups, self.group, self.refuse, self.findings = groups, group, refuse, findings
        self.shape = group.anchor.operands[0].shape
        self.axes = reduced_axes(group.anchor)
        rank = len(self.shape)
        self.is_last = self.axes == frozenset(range(rank - len(self.axes), rank))
        self.rows = squeezed(tuple(d for i, d in enumerate(self.shape) if i not in self.axes))
        self.whole = squeezed(self.shape)

    def grow(self) -> None:
        """Followers first, then what feeds them all."""
        if self.is_last:
            grown = True
            while grown:
                grown = False
                for node in self.followers():
                    if self.take(node):
                        grown = True
            self.give_back()

    def followers(self) -> list[Node]:
        found: dict[Node, None] = {}
        for node in self.group.nodes:
            for reader in self.groups.readers(node):
                if self.groups.of[reader] is not self.group:
                    found[reader] = None
        return sorted(found, key=self.groups.place.__getitem__)

    def take(self, node: Node) -> bool:
        other = self.groups.of[node]
        if other.nodes != {node}:
            return False
        problem = self.problem(node)
        if problem is None and not self.groups.can_merge(self.group, other):
            problem = "another operand depends on the reduction"
        if problem is not None:
            if node.op.kind not in ("contract", "attention", "state", "gather"):
                self.refuse("reduction", f"{node.op.name}: {problem}", node.results[0])
            return False
        self.groups.move(node, self.group)
        self.findings.fire("reduction")
        return True

    def problem(self, node: Node) -> str | None:
        """Why a reader cannot be computed in the same kernel."""
        if node.op.kind in ("reduce", "composite"):
            if node.op.name == "rope":
                return "rope is not decomposed"
            if node.operands[0].shape != self.shape or reduced_axes(node) != self.axes:
                return "it reduces other rows"
        elif node.op.kind != "elementwise":
            return f"a {node.op.kind} op follows in a kernel of its own"
        else:
            shape = squeezed(node.results[0].shape)
            if shape not in (self.rows, self.whole) and not self.is_part_of_row(node):
                return "it is over other rows"
        for value in node.operands:
            if not self.aligned(value, node):
                return "it reads the reduction at other rows than its own"
        return None

    def is_part_of_row(self, node: Node) -> bool:
        """Whether the result has the group's rows and part of the reduced axis (a half, say)."""
        shape = node.results[0].shape
        return len(self.axes) == 1 and squeezed(shape[:-1]) == self.rows

    def aligned(self, value: Value, reader: Node) -> bool:
        """Whether each row of `reader` reads the same row of the group's values only."""
        node = value.node
        if node is None or not any(
            self.groups.of[p] is self.group for p in self.groups.sources(value)
        ):
            return True
        if reader.op.kind == "elementwise" or reader.op.name == "broadcast_to":
            if not self.same_places(value.shape, reader.results[0].shape):
                return False
        if node in self.group.nodes:
            return True
        rank = node.results[0].type.rank
        match node.op.name:
            case "reshape":
                kept = squeezed(node.operands[0].shape) == squeezed(node.results[0].shape)
            case "broadcast_to":
                kept = squeezed(node.operands[0].shape) in (self.rows, self.whole)
            case "slice" | "pad" | "concat":
                kept = normalize_axis(node.attrs["axis"], rank) == rank - 1 and len(self.axes) == 1
            case _:
                kept = node.op.kind == "elementwise"
        return kept and all(self.aligned(v, node) for v in node.operands)

    def same_places(self, shape: Shape, result: Shape) -> bool:
        """Whether broadcasting puts the rows of `shape` on the rows of `result`.

        One number a row [4] beside a whole [4, 4] would otherwise be taken for a row.
        """
        if squeezed(shape) != self.rows or self.rows == self.whole:
            return True
        places = {i for i, d in enumerate((1,) * (len(result) - len(shape)) + shape) if d != 1}
        large = [i for i, d in enumerate(result) if d != 1]
        if squeezed(result) == self.rows:
            return places == set(large)
        if squeezed(result) == self.whole:
            return places == set(large[: len(self.rows)])
        return places == {i for i in large if i < len(result) - 1}  # part of the reduced axis

    def give_back(self) -> None:
        """Take out nodes that others read but that have no shape the kernel can store."""
        changed = True
        while changed:
            changed = False
            for node in sorted(self.group.nodes, key=self.groups.place.__getitem__, reverse=True):
                if node is self.group.anchor or node.op.kind != "elementwise":
                    continue
                shape = squeezed(node.results[0].shape)
                read = self.groups.reading_groups(node) or self.groups.leaves(node)
                if read and shape not in (self.rows, self.whole):
                    self.group.nodes.discard(node)
                    self.groups.make(node)
                    self.refuse("reduction", f"{node.op.name}: others read half a row", None)
                    changed = True


def reduced_axes(node: Node) -> frozenset[int]:
    """The axes that a reduction, a norm or a softmax runs over."""
    rank = node.operands[0].type.rank
    if node.op.name in ("rms_norm", "layer_norm"):
        return frozenset((rank - 1,))
    given = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    return frozenset(normalize_axis(a, rank) for a in given)
