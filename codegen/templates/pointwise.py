"""Pointwise kernels: each element of the outputs by itself, through views and lookups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim, product
from ...ir.graph import Node, Value
from ...ir.indexing import linearize
from ...ir.target import Target
from ..cost import scaled
from ..elements import index_facts
from ..groups import Group
from ..inline import Inliner
from ..loops import Axis, LoopKernel, Pointwise, Store
from .template import WARPS, Bucket, Schedule, Template, clip, declare_axes, powers_of_2

FEW = 1 << 17  # elements, on sm_90, of which narrow programs leave fewer cores idle


@dataclass(frozen=True)
class PointwiseSchedule(Schedule):
    """Elements a program takes."""

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
        few = scaled(FEW, target)
        table: list[Bucket] = [
            (0, few, PointwiseSchedule(256, 4)),
            (few + 1, None, PointwiseSchedule(1024, 4)),
        ]
        return total, clip(table, index_facts(kernel, ()), total)


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
