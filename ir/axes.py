"""Along which axis of its result an op lays each axis of its operands, and where it mixes.

What an op does along an axis that it keeps apart is the same for each place of that axis and needs
no other place: so tokens, rows and shards are followed through a graph.
"""

from collections.abc import Sequence
from typing import Any

from .builder import decomposed
from .combine import Contraction
from .dim import Dim, symbols_of
from .facts import Facts
from .graph import Node, Value
from .index_map import Number, SymbolContext, compared, leaves
from .indexing import calls_of
from .op import normalize_axis

# an axis of the result; None where it is kept apart and lies along none; the words for how the op
# mixes along it, as in "it reduces" the axis
Along = int | str | None
DIFFERENT = "every place meets every other one along"  # two operands lie across each other
TOLD = "it tells places apart along"


class Axes:
    """Queries over nodes of graphs whose symbols `facts` knows."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self._known: dict[Any, tuple[tuple[Along, ...], ...]] = {}

    def of(self, node: Node) -> tuple[tuple[Along, ...], ...]:
        """For each operand, for each of its axes, where it lies in the first result."""
        key = node.key
        if key not in self._known:
            self._known[key] = self._find(node)
        return self._known[key]

    def follow(self, node: Node, places: Sequence[int | None]) -> Along:
        """Where an axis lies in the result that lies along axis `places[i]` of operand i."""
        lying = zip(self.of(node), places, strict=True)
        return _joined([axes[place] for axes, place in lying if place is not None])

    def _find(self, node: Node) -> tuple[tuple[Along, ...], ...]:
        op, ranks = node.op, [v.type.rank for v in node.operands]
        rank = node.results[0].type.rank
        if op.axes is not None:
            return op.axes(*(v.type for v in node.operands), **node.attrs)
        if op.index_map is not None:
            return self._of_map(node)
        if op.kind == "elementwise":
            return tuple(tuple(range(rank - r, rank)) for r in ranks)
        if op.contraction is not None:
            return _of_contraction(node, op.contraction(**node.attrs))
        if op.combine is not None:
            return (_of_combine(node),)
        if op.decomposition is not None:
            return self._of_decomposition(node)
        return tuple((f"nothing is known of what {op.name} does along",) * r for r in ranks)

    def told_apart(self, node: Node) -> frozenset[int]:
        """Axes of the result whose places the index map does not treat alike."""
        return _told_apart(node, SymbolContext(node, self.facts))

    def _of_map(self, node: Node) -> tuple[tuple[Along, ...], ...]:
        at = SymbolContext(node, self.facts)
        told, reads = _told_apart(node, at), at.reads
        return tuple(
            tuple(
                _joined([_lies(index[axis], size, at, told) for o, index in reads if o == i])
                for axis, size in enumerate(operand.shape)
            )
            for i, operand in enumerate(node.operands)
        )

    def _of_decomposition(self, node: Node) -> tuple[tuple[Along, ...], ...]:
        graph = decomposed(node.op, (v.type for v in node.operands), node.attrs)
        (out,), parts = graph.outputs, graph.nodes
        told = {
            self.through(parts, part.results[0], axis, out)
            for part in parts
            if part.op.index_map is not None
            for axis in self.told_apart(part)
        }
        found = (
            [self.through(parts, x, axis, out) for axis in range(x.type.rank)] for x in graph.inputs
        )
        return tuple(
            tuple(TOLD if isinstance(along, int) and along in told else along for along in axes)
            for axes in found
        )

    def through(self, nodes: Sequence[Node], start: Value, axis: int, end: Value) -> Along:
        """Where an axis of `start` lies in `end`, which the nodes, in order, make of it."""
        places: dict[Value, int | None] = {start: axis}
        for node in nodes:
            if places.keys().isdisjoint(node.operands):
                continue
            along = self.follow(node, [places.get(v) for v in node.operands])
            if isinstance(along, str):
                return along
            places.update(dict.fromkeys(node.results, along))
        return places.get(end)


def _told_apart(node: Node, at: SymbolContext) -> frozenset[int]:
    """Axes of the result whose places the map of a node does not treat alike.

    Those by which it chooses or numbers, and those that occur in an index twice, otherwise than as
    they are, or for an axis of another size.
    """
    numbers = (m.value for m in leaves(at.mapped) if isinstance(m, Number))
    told = [*compared(at.mapped), *numbers]
    sizes = dict(zip(at.index, at.result.shape))
    for operand, index in at.reads:
        told += [
            dim
            for dim, size in zip(index, node.operands[operand].shape, strict=True)
            if index.count(dim) > 1 or sizes.get(dim) != size
        ]
    names = frozenset().union(*map(symbols_of, told))
    return frozenset(axis for axis, name in enumerate(at.extents) if name in names)


def _lies(place: Dim, size: Dim, at: SymbolContext, told: frozenset[int]) -> Along:
    """Where an axis of `size` lies that is read at `place`."""
    for axis, (index, extent) in enumerate(zip(at.index, at.result.shape, strict=True)):
        if extent == size and place == index:
            return TOLD if axis in told else axis
    if size == 1:
        return None
    if symbols_of(place) & at.lookups.keys():
        return "it picks along"
    return "it merges" if calls_of(place) else "it works along"


def _joined(found: list[Along]) -> Along:
    mixed = [along for along in found if isinstance(along, str)]
    if mixed or len(set(found)) > 1:
        return mixed[0] if mixed else DIFFERENT
    return found[0] if found else None


def _of_contraction(node: Node, contraction: Contraction) -> tuple[tuple[Along, ...], ...]:
    rank = node.results[0].type.rank
    along: dict[str, Along] = {"m": rank - 2, "n": rank - 1, "k": "it sums over"}
    if contraction.is_grouped:
        ws = (("it picks along", *(along[role] for role in roles)) for roles in contraction.ws)
        return tuple(along[role] for role in contraction.x), *ws, (0,)
    return tuple(
        (*range(rank - v.type.rank, rank - 2), *(along[role] for role in roles))
        for v, roles in zip(node.operands, (contraction.x, *contraction.ws), strict=True)
    )


def _of_combine(node: Node) -> tuple[Along, ...]:
    rank, gone = node.operands[0].type.rank, combined_axes(node)
    if node.op.kind == "scan":
        return tuple("it works along" if i in gone else i for i in range(rank))
    kept = [i for i in range(rank) if i not in gone or node.attrs["keepdims"]]
    return tuple("it reduces" if i in gone else kept.index(i) for i in range(rank))


def combined_axes(node: Node) -> frozenset[int]:
    """The axes of its first operand that a reduction or scan runs over."""
    given = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    return frozenset(normalize_axis(axis, node.operands[0].type.rank) for axis in given)
