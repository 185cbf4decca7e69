"""Pointwise kernels: each element of the outputs by itself, through views and lookups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim, product
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.indexing import coefficient_of, linearize
from ...ir.target import Target
from ..cost import scaled
from ..elements import index_facts, loads_of
from ..groups import Group
from ..inline import Inliner
from ..loops import Axis, LoopKernel, Pointwise, Store
from .template import (
    WARPS,
    Bucket,
    Schedule,
    Template,
    clip,
    declare_axes,
    merged,
    powers_of_2,
)

FEW = 1 << 17  # elements, on sm_90, of which narrow programs leave fewer cores idle
LEAST_RUN = 16  # neighbours along an axis that are worth a side of a tile


@dataclass(frozen=True)
class PointwiseSchedule(Schedule):
    """Elements a program takes: neighbours, or a square where reads and writes cross."""

    domain: ClassVar = {"block": powers_of_2(32, 8192), "num_warps": WARPS}

    block: int = 1024
    num_warps: int = 4


class PointwiseTemplate(Template):
    """One part an iteration space; outputs that share it share the part."""

    name = "pointwise"
    kinds = frozenset(("elementwise", "gather", "state", "view", "source"))
    parts = (Pointwise,)
    grows_over = "anything"

    def why_not(self, group: Group, node: Node) -> str | None:
        if any(n.op.kind == "state" for n in group.nodes) and group.follows(node):
            return "what a state op returns is read by a later kernel only"
        return None

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Pointwise, ...]:
        parts: dict[tuple[Axis, ...], list[Store]] = {}
        for output in outputs:
            if output.node is not None and output.node.op.name == "kv_append":
                axes, store = _append(inliner, output)
            else:
                axes, store = _plain_store(inliner, output)
            space = tuple(a for a in axes if a.extent != 1)
            parts.setdefault(space, []).append(store)
        return tuple(Pointwise(space, tuple(stores)) for space, stores in parts.items())

    def points(self, part: Pointwise) -> Dim:
        return product(a.extent for a in part.axes)

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        total = sum(map(self.points, kernel.parts))
        # few elements: more programs rather than wide ones
        few, facts = scaled(FEW, target), index_facts(kernel, ())
        small, large, most = (PointwiseSchedule(block, 4) for block in (256, 1024, 2048))
        if any(crossing(part, facts) is not None for part in kernel.parts):
            small, large, most = (PointwiseSchedule(block, 4) for block in (1024, 4096, 4096))
        many = few * 8
        table: list[Bucket] = [(0, few, small), (few + 1, many, large), (many + 1, None, most)]
        return total, clip(merged(table), facts, total)


def crossing(part: Pointwise, facts: Facts) -> Axis | None:
    """The axis along which neighbours are read where writes have theirs along the last; or None.

    A transpose has one, and no order of its elements by one index suits both sides.
    """
    *outer, last = part.axes or (None,)
    if not outer or facts.hint(last.extent) < LEAST_RUN:
        return None
    offsets = [load.offset for load in loads_of(part.stores)]
    jumps = [offset for offset in offsets if coefficient_of(offset, last.name) not in (None, 0, 1)]
    found = (
        axis
        for axis in reversed(outer)
        if facts.hint(axis.extent) >= LEAST_RUN
        and any(coefficient_of(offset, axis.name) == 1 for offset in jumps)
    )
    return next(found, None)


def _plain_store(inliner: Inliner, output: Value) -> tuple[tuple[Axis, ...], Store]:
    source = _strip_reshapes(inliner, output)
    axes, index = declare_axes(inliner, source.shape)
    value = inliner.element(source, index)
    number = inliner.param(output, is_written=True)
    return axes, Store(number, linearize(index, source.shape), value)


def _strip_reshapes(inliner: Inliner, value: Value) -> Value:
    """The value whose elements `value` holds in the same row-major order."""
    while inliner.is_inside(value) and value.node.op.name == "reshape":
        if value in inliner.bound:
            break
        value = value.node.operands[0]
    return value


def _append(inliner: Inliner, output: Value) -> tuple[tuple[Axis, ...], Store]:
    pool, x, slots = output.node.operands
    axes, (token, head, at) = declare_axes(inliner, x.shape)
    slot = inliner.element(slots, (token,))
    place = inliner.indirect_symbol(slot)
    page_size = pool.shape[2]
    number = inliner.param(pool, is_written=True)
    offset = linearize((place // page_size, head, place % page_size, at), pool.shape)
    element = inliner.element(x, (token, head, at))
    return axes, Store(number, offset, element, inliner.indirect_of(offset), guard=slot)
