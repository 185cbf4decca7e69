"""Sorts: the places of an axis in order of their elements, for every row; all of them or the first.

Elements that are equal stay in order of their places: so there is one result, however it is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim
from ...ir.facts import Facts
from ...ir.graph import Node, Value
from ...ir.op import normalize_axis
from ...ir.target import Target
from ...ir.types import i64
from ..elements import index_facts
from ..forward import stores_after
from ..inline import Inliner
from ..loops import Axis, Element, Index, LoopKernel, Part, Store
from .template import (
    Bucket,
    Schedule,
    SurroundedTemplate,
    clip,
    declare_axes,
    power_of_2,
    powers_of_2,
    settled,
)

TILE = 1024  # elements that a program puts in order
LONGEST = 31  # a row has fewer than two to this elements


@dataclass(frozen=True)
class Sort(Part):
    """For every row (point of `rows`) and the places of `rank`, the first of them: the stores.

    The elements of a row are `value` along `axis`, NaN largest. In the stores, which are over rows
    and rank, `axis` is where the element lies that comes at that rank.
    """

    rows: tuple[Axis, ...]
    axis: Axis
    value: Element
    is_descending: bool
    rank: Axis
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class SortSchedule(Schedule):
    """Tiles of `tile` elements put in order, then merged two by two, `passes` times."""

    domain: ClassVar = {"tile": powers_of_2(1, TILE), "passes": range(LONGEST)}

    tile: int
    passes: int = 0


def sort_schedules(extent: Dim, facts: Facts) -> list[Bucket]:
    """Which schedule for which extent of the axis."""
    high = facts.bounds(extent)[1]
    if high is not None and high <= TILE:
        return [(0, None, SortSchedule(power_of_2(high)))]
    table: list[Bucket] = [(0, TILE, SortSchedule(TILE))]
    for passes in range(1, LONGEST - TILE.bit_length() + 2):
        longest = TILE << passes
        table.append((longest // 2 + 1, longest, SortSchedule(TILE, passes)))
    return clip(table, facts, extent)


class SortTemplate(SurroundedTemplate):
    """One sort, with what is computed before and after it element by element."""

    name = "sort"
    kinds = frozenset(("sort",))
    parts = (Sort,)

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Sort]:
        (node,) = [n for n in nodes if n.op.kind == "sort"]
        (x,) = node.operands
        at = normalize_axis(node.attrs["axis"], x.type.rank)
        kept = node.results[0].shape
        axes, index = declare_axes(inliner, x.shape)
        rank = Axis("_k", kept[at])
        ranked = (*index[:at], inliner.axis(rank.name, rank.extent), *index[at + 1 :])
        value = inliner.element(x, index)
        place = Index(index[at], i64)
        results = dict(zip(node.results, (value, place)))
        stores = stores_after(inliner, results, ranked, outputs)
        rows = tuple(a for i, a in enumerate(axes) if i != at and a.extent != 1)
        descends = node.attrs.get("descending", node.attrs.get("largest"))
        return (Sort(rows, axes[at], value, descends, rank, stores),)

    def operations(self, part: Sort) -> Dim:
        """How often elements are compared depends on the way: not counted."""
        return 0

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        (part,) = kernel.parts
        facts = index_facts(kernel, ())
        extent = part.axis.extent
        return settled(extent, sort_schedules(extent, facts), facts)
