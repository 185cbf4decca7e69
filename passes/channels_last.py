"""Keep images with their channels side by side, from the first convolution to the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.axes import Axes
from ..ir.builder import Builder
from ..ir.dim import Dim, product
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from . import findings
from .hoist_transposes import mixed_axes
from .manager import Pass
from .rewrite import replace_nodes, rewrite
from .view_rules import VIEW_RULES

Perm = tuple[int, ...]


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """A window's channels are then a run in memory, for products, pooling and depthwise sums alike.

    Convolutions are taken apart channels last, between two transposes. The later one moves down,
    over all that does not care in which order axes lie, to where it meets the next convolution's:
    f(transpose(x))  ->  transpose(f(x)).
    """

    name = "channels-last"

    def run(self, graph: Graph) -> Graph:
        if not any(node.op.name == "conv" for node in graph.nodes):
            return graph
        return rewrite(replace_nodes(graph, _Sink(graph)), VIEW_RULES)


class _Sink:
    def __init__(self, graph: Graph):
        self.axes = Axes(graph.facts)
        self.turned: dict[Value, tuple[Value, Perm]] = {}  # transposes that move: of what, how

    def __call__(self, b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
        if node.op.name == "conv":
            findings.current().fire("conv")
            assert node.op.decomposition is not None, "convolutions are taken apart"
            result = node.op.decomposition(b, *operands, **node.attrs)
            last = result.node
            self.turned[result] = last.operands[0], last.attrs["perm"]
            return [result]
        found = next((self.turned[v] for v in operands if v in self.turned), None)
        if found is None or len(node.results) > 1:
            return None
        moved = self.moved(b, node, operands, found[1])
        if moved is None:
            return None
        inner, perm = moved
        if perm == tuple(range(len(perm))):
            return [inner]
        result = b.transpose(inner, perm=perm)
        self.turned[result] = moved
        return [result]

    def moved(
        self, b: Builder, node: Node, operands: Sequence[Value], perm: Perm
    ) -> tuple[Value, Perm] | None:
        """What to compute instead, and how its result is then to be transposed.

        None where the op minds the order of axes.
        """
        attrs, rank = dict(node.attrs), len(perm)
        if "axis" in attrs:
            attrs["axis"] = perm[normalize_axis(attrs["axis"], rank)]
        if operands[0] in self.turned:
            inner, perm = self.turned[operands[0]]
            match node.op.name:
                case "transpose":
                    return inner, tuple(perm[axis] for axis in attrs["perm"])
                case "reshape":
                    return _reshaped(b, inner, perm, node.results[0].shape)
                case "window":
                    return b.window(inner, **attrs), (*perm, rank)
                case "gather" if operands[1].type.rank == 1:
                    return b.gather(inner, operands[1], **attrs), perm
            if node.op.kind == "reduce":
                return _reduced(b, node, inner, perm)
        mixed = mixed_axes(node, self.axes)
        if mixed is None or node.results[0].type.rank != rank:
            return None
        if "axis" not in attrs and any(perm[axis] != axis for axis in mixed):
            return None
        return b.node(node.op, [self.straight(b, v, perm) for v in operands], attrs).result, perm

    def straight(self, b: Builder, value: Value, perm: Perm) -> Value:
        """A value that broadcasts to the rank of perm, as it is before perm."""
        inner, own = self.turned.get(value, (value, None))
        if own == perm:
            return inner
        missing = len(perm) - value.type.rank
        if all(perm[axis] == axis for axis in range(missing, len(perm))):
            return value
        if missing:
            value = b.reshape(value, shape=(1,) * missing + value.shape)
        return b.transpose(value, perm=_inverse(perm))


def _inverse(perm: Perm) -> Perm:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _reduced(b: Builder, node: Node, inner: Value, perm: Perm) -> tuple[Value, Perm]:
    attrs, rank = dict(node.attrs), len(perm)
    given = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
    gone = {normalize_axis(axis, rank) for axis in given}
    places = tuple(sorted(perm[axis] for axis in gone))
    attrs.update({"axes": places} if "axes" in attrs else {"axis": places[0]})
    result = b.node(node.op, [inner], attrs).result
    if attrs["keepdims"]:
        return result, perm
    kept = [place for axis, place in enumerate(perm) if axis not in gone]
    return result, tuple(sorted(kept).index(place) for place in kept)


def _reshaped(
    b: Builder, inner: Value, perm: Perm, shape: Sequence[Dim]
) -> tuple[Value, Perm] | None:
    """A reshape of axes that lie in another order; None where it cuts across all of them."""
    before = [inner.shape[place] for place in perm]
    groups = _groups(before, shape)
    if groups is None:
        return None
    # groups stay in the order in which they lie; axes of one that lie apart are brought together
    placed = []
    for old, new in groups:
        large = [perm[axis] for axis in old if before[axis] != 1] or [perm[axis] for axis in old]
        placed.append((min(large, default=0), [perm[axis] for axis in old], new))
    placed.sort(key=lambda group: group[0])
    places = tuple(place for _, old, _ in placed for place in old)
    axes = [axis for _, _, new in placed for axis in new]
    if places != tuple(range(len(perm))):
        inner = b.transpose(inner, perm=places)
    result = b.reshape(inner, shape=tuple(shape[axis] for axis in axes))
    return result, tuple(axes.index(axis) for axis in range(len(shape)))


def _groups(
    before: Sequence[Dim], after: Sequence[Dim]
) -> list[tuple[list[int], list[int]]] | None:
    """Runs of axes of two shapes that hold the same elements, as short as can be."""
    groups: list[tuple[list[int], list[int]]] = []
    i, j = 0, 0
    while i < len(before) or j < len(after):
        old, new = [i][: len(before) - i], [j][: len(after) - j]
        i, j = i + len(old), j + len(new)
        while product(before[k] for k in old) != product(after[k] for k in new):
            x, y = product(before[k] for k in old), product(after[k] for k in new)
            is_less = isinstance(x, int) and (not isinstance(y, int) or x < y)
            if is_less and i < len(before):
                old.append(i)
                i += 1
            elif j < len(after):
                new.append(j)
                j += 1
            else:
                return None
        groups.append((old, new))
    return groups
